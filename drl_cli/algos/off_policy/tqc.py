"""TQC: Truncated Quantile Critics (Kuznetsov et al. 2020, arXiv 2005.04269).

TQC is SAC whose critics predict quantiles of the return. The target consists of the quantiles of all critics together,
without the largest quantiles. Leaving these out reduces the overestimation of values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy.sac import noise, policy
from drl_cli.api import torch

ACTIONS, TABLES = sac.ACTIONS, sac.TABLES
__all__ = ["Algorithm", "Config", "networks", "noise", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """The options of TQC: those of SAC, and `critics` critics, which predict `quantiles` quantiles each.

    The target leaves out the `critics` * `dropped` largest quantiles of all critics together.
    """

    critics: drl.Count
    quantiles: drl.Count
    dropped: drl.Natural

    def __post_init__(self) -> None:
        if self.dropped >= self.quantiles:
            raise drl.Refused(f"algo.dropped={self.dropped} has to be below algo.quantiles={self.quantiles}")


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return SAC's networks, whose critics have the outputs of quantiles. They draw their weights first."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    critic = drl.Critic(encoder.size, size, network, ensemble=config.critics, outputs=config.quantiles)
    actor = drl.MLP(encoder.size, 2 * size, network)
    log_alpha = drl.Scalar(math.log(config.initial_alpha))
    return {"encoder": encoder, "actor": actor, "critic": critic, "log_alpha": log_alpha}


class Algorithm(sac.Algorithm):
    """Learns the critics and, after their step, the actor and the temperature."""

    has_own_weights = False

    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(config, *args)
        self.fraction = torch.from_numpy(drl.losses.midpoints(config.quantiles)).to(self.context.device)

    def value(self, x: torch.Tensor, action: torch.Tensor, masks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean of all quantiles of all critics, `[B]`. No quantiles are dropped here (eq. 12)."""
        value: torch.Tensor = self.nets.frozen.critic(x, action, masks).mean((0, 2))
        return value

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, rows, seen = self.config, self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, x, is_actors = len(rows["reward"]), seen.obs, counts.opt_steps % self.config.actor_period == 0
        # A loss that is not finite ends the update at a step (trainer.on_nonfinite=skip). All random numbers are drawn
        # before the first step, so that such an update draws as many of them as any other.
        (next_noise,) = self.randn(num, self.spec.action.size)
        masks, target_masks = (self.masks("critic", num) for _ in range(2))
        if is_actors:
            (noise,) = self.randn(num, self.spec.action.size)
            actor_masks, _ = (self.masks("critic", num) for _ in range(2))

        # The critics: all quantiles learn from the smallest quantiles of all critics together    (eq. 8 to 11)
        num_kept = config.critics * (config.quantiles - config.dropped)
        with torch.no_grad():
            next_action, log_prob = drl.TanhGaussian.of(nets.actor(seen.next_obs)).sample_log_prob(next_noise)
            next_x, cost = nets.target.encoder.see(batch).next_obs, nets.log_alpha().exp() * log_prob
            pooled = nets.target.critic(next_x, next_action, target_masks).transpose(0, 1).flatten(1)
            smallest = pooled.sort(-1).values[:, :num_kept]  # of [B, N K]
            target = rows["reward"].unsqueeze(-1) + rows["discount"].unsqueeze(-1) * (smallest - cost.unsqueeze(-1))
        quantiles = nets.critic(seen.learned, rows["action"], masks)
        losses = [
            drl.losses.quantile_critic(own, target, self.fraction, weight=rows.get("weight")) for own in quantiles
        ]
        critic_loss = torch.stack(losses).mean() / config.quantiles  # each is a sum over the K quantiles
        self.optimizer.minimize(critic_loss, "encoder", "critic")
        self.params.follow(config.tau)
        q = quantiles.detach().mean(-1)
        metrics = {"critic_loss": critic_loss, "q_mean": drl.losses.mean(q, rows.get("valid_weight"))}

        if is_actors:
            loss, more = self.actor_loss(rows, x, noise, actor_masks)
            self.optimizer.minimize(loss, "actor", "log_alpha")
            metrics |= more
        return drl.Update(metrics, self.per_sequence((q - target.mean(-1)).abs().mean(0), batch))
