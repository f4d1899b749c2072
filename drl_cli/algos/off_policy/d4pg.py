"""D4PG (Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", arXiv 1804.08617).

D4PG is DDPG whose critic predicts a categorical distribution of the return. D4PG learns from n-step returns that many
workers collect.
"""

from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import ddpg
from drl_cli.algos.off_policy._shared import check_support
from drl_cli.algos.off_policy.ddpg import explore, noise, policy
from drl_cli.api import torch

ACTIONS, TABLES = ddpg.ACTIONS, ddpg.TABLES
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(ddpg.Config):
    """The options of D4PG: those of DDPG, and the critic's support of `atoms` returns from `v_min` to `v_max`."""

    atoms: drl.Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


def networks(config: Config, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return DDPG's networks, whose critic has the logits of a categorical distribution."""
    return ddpg.networks(config, network, spec, outputs=config.atoms)


class Algorithm(ddpg.Algorithm):
    """Learns the actor and the critic. Only the losses differ from those of DDPG."""

    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(config, *args)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, rows, seen, support = self.nets, self.rows(batch), self.nets.encoder.see(batch), self.support
        masks, target_masks = (self.masks("critic", len(rows["reward"])) for _ in range(2))

        # The cross-entropy with the projected target    (algorithm 1)
        with torch.no_grad():
            next_x = nets.target.encoder.see(batch).next_obs
            next_logits = nets.target.critic(next_x, nets.target.actor(next_x), target_masks)
            target = drl.losses.project(next_logits.softmax(-1), rows["reward"], rows["discount"], support)
        logits = nets.critic(seen.learned, rows["action"], masks)
        critic_loss = drl.losses.categorical_critic(logits, target, rows.get("weight"))

        # The mean return that the critic predicts for the actor's actions    (eq. 4)
        actor_logits = nets.frozen.critic(seen.obs, nets.actor(seen.obs), masks)
        actor_loss = -drl.losses.mean(actor_logits.softmax(-1) @ support, rows.get("valid_weight"))

        self.optimizer.minimize(critic_loss + actor_loss)
        self.params.follow(self.config.tau)
        q_mean = drl.losses.mean(logits.detach().softmax(-1) @ support, rows.get("valid_weight"))
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": q_mean}
        return drl.Update(metrics, self.per_sequence(drl.losses.divergence(logits.detach(), target), batch))
