"""IQL (Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169).

IQL never evaluates an action that is not in the data. A value network learns V(s), an upper expectile of Q(s, a) over
the data's actions. Twin critics learn Q with the targets r + discount * V(s'). The actor maximises the log-likelihood
of the data's actions, weighted by exp(beta * advantage). The advantage is Q(s, a) - V(s).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.api import torch

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Bounds of the actor's log standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of IQL, which conf/algo/iql.yaml explains."""

    lr: drl.Positive
    tau: drl.Fraction
    expectile: drl.Fraction
    beta: drl.NonNegative
    max_weight: drl.Positive


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critics trains the encoder."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, size, network, squashed=True),
        "log_std": drl.Vector(size),
        "value": drl.MLP(encoder.size, 1, network),
        "critic": drl.Critic(encoder.size, size, network, ensemble=2),
    }


def gaussian(nets: Any, x: Any) -> drl.Gaussian:
    """Return the Gaussian of the actions for features `x`. The standard deviations do not depend on the state.

    A tanh-Gaussian, as SAC's, would not do: its log-density is infinite at -1 and 1, and datasets have such actions.
    """
    return drl.Gaussian(nets.actor(x), nets.log_std().clip(LOG_STD_MIN, LOG_STD_MAX), clips=True)


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.Gaussian:
    return gaussian(nets, nets.encoder(obs))


class Algorithm(drl.Algorithm):
    """Learns actor, value network and critics. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor", "log_std"), ("encoder", "critic")

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, rows, seen = self.config, self.nets, self.rows(batch), self.nets.encoder.see(batch)
        weight, valid, x = rows.get("weight"), rows.get("valid_weight"), seen.obs  # `valid` is 0 for padding
        masks, target_masks = (self.masks("critic", len(rows["reward"])) for _ in range(2))

        # V(s) is an upper expectile of the target critics' smaller value    (eq. 5)
        with torch.no_grad():
            target_q = nets.target.critic(nets.target.encoder.see(batch).obs, rows["action"], target_masks)
        advantage = target_q.amin(0) - nets.value(x).squeeze(-1)
        value_loss = drl.losses.mean(drl.losses.expectile(advantage, config.expectile), weight)

        # The target of the critics is r + discount * V(s')    (eq. 6)
        with torch.no_grad():
            target = rows["reward"] + rows["discount"] * nets.value(seen.next_obs).squeeze(-1)
        q = nets.critic(seen.learned, rows["action"], masks)
        critic_loss = drl.losses.twin_critics(q, target, weight)

        # The log-likelihood of the data's actions, weighted by exp(beta * advantage)    (eq. 7)
        action_weight = (config.beta * advantage.detach()).exp().clamp(max=config.max_weight)
        actor_loss = -drl.losses.mean(action_weight * gaussian(nets, x).log_prob(rows["action"]), valid)

        self.optimizer.minimize(value_loss + critic_loss + actor_loss)
        self.params.follow(config.tau)
        metrics = {"critic_loss": critic_loss, "value_loss": value_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": drl.losses.mean(q, valid), "advantage": drl.losses.mean(advantage, valid)}
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))
