"""Soft Actor-Critic for discrete actions (Christodoulou 2019, "... for Discrete Action Settings", arXiv 1910.07207).

The actor returns a logit for each action, and each of the two critics returns a value for each action. Expectations
over actions are therefore computed as sums over all actions, without sampling. The target entropy is a fraction of the
largest possible entropy, which is the logarithm of the number of legal actions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.api import torch

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of discrete SAC. `target_entropy` is a fraction of the largest possible entropy."""

    lr: drl.Positive
    alpha_lr: drl.Positive
    tau: drl.Fraction
    initial_alpha: drl.Positive
    target_entropy: drl.Fraction
    actor_period: drl.Count


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critics trains the encoder."""
    encoder, actions = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, actions, network),
        "critic": drl.MLP(encoder.size, actions, network, ensemble=2),
        "log_alpha": drl.Scalar(math.log(config.initial_alpha)),
    }


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.Categorical:
    return drl.Categorical(nets.actor(nets.encoder(obs)), drl.action_mask(obs))


class Algorithm(drl.Algorithm):
    """Learns actor, critics and temperature. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor"), ("encoder", "critic")
    rates = {"log_alpha": "alpha_lr"}

    def entropy_target(self, mask: torch.Tensor | None) -> torch.Tensor | float:
        """Return the target entropy in nats: one number for all rows, or `[B]` with legal-action masks `[B, A]`."""
        fraction: float = self.config.target_entropy
        if mask is None:
            return fraction * math.log(self.spec.action.size)
        num_legal = mask.sum(-1).clamp(min=1)  # log 0 would be -inf
        return fraction * num_legal.log()

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, rows, seen = self.nets, self.rows(batch), self.nets.encoder.see(batch)
        masks, target_masks = (self.masks("critic", len(rows["reward"])) for _ in range(2))
        valid, alpha, parts = rows.get("valid_weight"), nets.log_alpha().detach().exp(), ["encoder", "critic"]

        # The value of the next state is an expectation over all actions    (eq. 10)
        with torch.no_grad():
            pi = drl.Categorical(nets.actor(seen.next_obs), drl.action_mask(rows["next_obs"]))
            next_q = nets.target.critic(nets.target.encoder.see(batch).next_obs, target_masks).amin(0)  # [B, A]
            next_value = (pi.log_probs.exp() * (next_q - alpha * pi.log_probs)).sum(-1)
            target = rows["reward"] + rows["discount"] * next_value
        values = nets.critic(seen.learned, masks)  # [2, B, A]
        action = rows["action"].view(1, -1, 1).expand(2, -1, 1)  # [2, B, 1], the same actions for both critics
        q = values.gather(-1, action).squeeze(-1)  # [2, B], the values of the actions taken
        loss = critic_loss = drl.losses.twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": critic_loss, "q_mean": drl.losses.mean(q, valid)}

        if counts.opt_steps % self.config.actor_period == 0:
            # The actor's loss is an expectation over all actions, too    (eq. 12)
            legal = drl.action_mask(rows["obs"])
            pi = drl.Categorical(nets.actor(seen.obs), legal)
            cost = alpha * pi.log_probs - values.detach().amin(0)
            actor_loss, entropy = drl.losses.mean((pi.log_probs.exp() * cost).sum(-1), valid), pi.entropy()
            # The temperature's loss has the factor log alpha in place of alpha, as in SAC    (eq. 11)
            missing = drl.losses.mean(self.entropy_target(legal) - entropy.detach(), valid)
            loss, parts = loss + actor_loss - nets.log_alpha() * missing, [*parts, "actor", "log_alpha"]
            metrics |= {"actor_loss": actor_loss, "alpha": alpha, "entropy": drl.losses.mean(entropy, valid)}
        self.optimizer.minimize(loss, *parts)
        self.params.follow(self.config.tau)
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))
