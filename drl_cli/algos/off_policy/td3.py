"""TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv 1802.09477).

TD3 is DDPG with three changes, which reduce the overestimation of values. There are two critics, and the target uses
the smaller value of both. The action in the target gets noise. The actor is updated less often than the critics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.algos.off_policy.ddpg import explore, noise, policy
from drl_cli.api import torch

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of TD3, which conf/algo/td3.yaml explains."""

    lr: drl.Positive
    tau: drl.Fraction
    noise: drl.NonNegative
    noise_kind: Literal["gaussian", "ou"]
    ou_theta: drl.Positive
    target_noise: drl.NonNegative
    noise_clip: drl.NonNegative
    actor_period: drl.Count


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critics trains the encoder."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, size, network, squashed=True),
        "critic": drl.Critic(encoder.size, size, network, ensemble=2),
    }


class Algorithm(drl.Algorithm):
    """Learns the critics and, after their step, the actor (algorithm 1)."""

    policy_parts, targets = ("encoder", "actor"), ("encoder", "actor", "critic")
    has_own_weights = False

    def next_value(self, rows: drl.Batch, action: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Return the value `[B]` of the next states: `q`, the smaller value of the `action` of the target actor."""
        return q

    def actor_loss(self, rows: drl.Batch, x: torch.Tensor, masks: Sequence[torch.Tensor]) -> drl.Metrics:
        """Return `actor_loss`, minus the mean value that the first critic gives to the actor's actions."""
        q = self.nets.frozen.critic(x, self.nets.actor(x), masks, first=1)
        return {"actor_loss": -drl.losses.mean(q, rows.get("valid_weight"))}

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, rows, seen = self.config, self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, x = len(rows["reward"]), seen.obs
        (noise,) = self.randn(num, self.spec.action.size)
        masks, target_masks = (self.masks("critic", num) for _ in range(2))

        with torch.no_grad():
            next_x = nets.target.encoder.see(batch).next_obs
            noise = (config.target_noise * noise).clamp(-config.noise_clip, config.noise_clip)
            next_action = (nets.target.actor(next_x) + noise).clamp(-1.0, 1.0)
            next_q = nets.target.critic(next_x, next_action, target_masks).amin(0)
            target = rows["reward"] + rows["discount"] * self.next_value(rows, next_action, next_q)
        q = nets.critic(seen.learned, rows["action"], masks)
        critic_loss = drl.losses.twin_critics(q, target, rows.get("weight"))
        self.optimizer.minimize(critic_loss, "encoder", "critic")
        metrics = {"critic_loss": critic_loss, "q_mean": drl.losses.mean(q, rows.get("valid_weight"))}

        if counts.opt_steps % config.actor_period == 0:
            metrics |= self.actor_loss(rows, x, masks)
            self.optimizer.minimize(metrics["actor_loss"], "actor")
            self.params.follow(config.tau)
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))
