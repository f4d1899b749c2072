"""AWAC (Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets", arXiv 2006.09359).

Twin critics learn Q of the actor's policy. The actor maximises the log-likelihood of the batch's actions, weighted by
exp(advantage / temperature). The advantage is Q(s, a) minus Q of an action that the actor samples. The same update
learns from a dataset and online.
"""

from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.offline.iql import gaussian, policy
from drl_cli.api import torch

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")
__all__ = ["Algorithm", "Config", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of AWAC, which conf/algo/awac.yaml explains."""

    lr: drl.Positive
    tau: drl.Fraction
    temperature: drl.Positive
    max_weight: drl.Positive


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critics trains the encoder."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, size, network, squashed=True),
        "log_std": drl.Vector(size),
        "critic": drl.Critic(encoder.size, size, network, ensemble=2),
    }


class Algorithm(drl.Algorithm):
    """Learns actor and critics. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor", "log_std"), ("encoder", "critic")

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, rows, seen = self.config, self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, valid, x = len(rows["reward"]), rows.get("valid_weight"), seen.obs  # `valid` is 0 for padding
        noise, next_noise = self.randn(num, *[self.spec.action.size] * 2)
        masks, target_masks = (self.masks("critic", num) for _ in range(2))

        # The critics    (algorithm 1, line 5)
        with torch.no_grad():
            next_action, next_x = (
                gaussian(nets, seen.next_obs).sample(next_noise),
                nets.target.encoder.see(batch).next_obs,
            )
            next_q = nets.target.critic(next_x, next_action, target_masks)
            target = rows["reward"] + rows["discount"] * next_q.amin(0)
        q = nets.critic(seen.learned, rows["action"], masks)
        critic_loss = drl.losses.twin_critics(q, target, rows.get("weight"))

        # The log-likelihood of the batch's actions, weighted by exp(advantage / temperature)    (eq. 13)
        pi = gaussian(nets, x)
        with torch.no_grad():
            advantage = q.amin(0) - nets.critic(x, pi.sample(noise), masks).amin(0)
            action_weight = (advantage / config.temperature).exp().clamp(max=config.max_weight)
        actor_loss = -drl.losses.mean(action_weight * pi.log_prob(rows["action"]), valid)

        self.optimizer.minimize(critic_loss + actor_loss)
        self.params.follow(config.tau)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": drl.losses.mean(q, valid), "advantage": drl.losses.mean(advantage, valid)}
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))
