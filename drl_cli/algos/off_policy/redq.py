"""REDQ: Randomized Ensembled Double Q-Learning (Chen et al. 2021, arXiv 2101.05982), and DroQ.

REDQ is SAC with an ensemble of critics and many critic updates per environment step. The target is the smallest value
of a random subset of the critics. DroQ (Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient Reinforcement
Learning", arXiv 2110.02034) is REDQ with only two critics, which have dropout and layer norm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy.sac import policy
from drl_cli.api import torch

ACTIONS, TABLES = sac.ACTIONS, sac.TABLES
__all__ = ["Algorithm", "Config", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of REDQ. `critics` is the number of critics, and `subset` the number of critics in each target."""

    lr: drl.Positive
    alpha_lr: drl.Positive
    tau: drl.Fraction
    initial_alpha: drl.Positive
    target_entropy: float | None
    actor_period: drl.Count
    critics: drl.Count
    subset: drl.Count

    def __post_init__(self) -> None:
        if self.subset > self.critics:
            raise drl.Refused(f"algo.subset={self.subset} must not be above algo.critics={self.critics}")


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return SAC's networks with more critics, which draw their weights first."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    critic = drl.Critic(encoder.size, size, network, ensemble=config.critics)
    actor = drl.MLP(encoder.size, 2 * size, network)
    log_alpha = drl.Scalar(math.log(config.initial_alpha))
    return {"encoder": encoder, "actor": actor, "critic": critic, "log_alpha": log_alpha}


class Algorithm(sac.Algorithm):
    """Learns the critics and, after their step, the actor and the temperature."""

    has_own_weights = False

    def draw(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Draw noise `[B, A]`, a subset of the critics, and the dropout masks of critics and target networks."""
        (noise,) = self.randn(rows, self.spec.action.size)
        order = torch.rand(self.config.critics, generator=self.generator, device=self.context.device).argsort()
        return noise, order[: self.config.subset], self.masks("critic", rows), self.masks("critic", rows)

    def value(self, x: torch.Tensor, action: torch.Tensor, masks: Sequence[torch.Tensor]) -> torch.Tensor:
        value: torch.Tensor = self.nets.frozen.critic(x, action, masks).mean(0)
        return value

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, rows, seen = self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, x, is_actors = len(rows["reward"]), seen.obs, counts.opt_steps % self.config.actor_period == 0
        # A loss that is not finite ends the update at a step (trainer.on_nonfinite=skip). All random numbers are drawn
        # before the first step, so that such an update draws as many of them as any other.
        next_noise, subset, masks, target_masks = self.draw(num)
        if is_actors:
            noise, _, actor_masks, _ = self.draw(num)

        # The critics: the target is the smallest value of the subset    (REDQ, algorithm 1; DroQ, algorithm 2)
        with torch.no_grad():
            next_action, log_prob = drl.TanhGaussian.of(nets.actor(seen.next_obs)).sample_log_prob(next_noise)
            next_q = nets.target.critic(nets.target.encoder.see(batch).next_obs, next_action, target_masks)
            soft_q = next_q[subset].amin(0) - nets.log_alpha().exp() * log_prob
            target = rows["reward"] + rows["discount"] * soft_q
        q = nets.critic(seen.learned, rows["action"], masks)  # [N, B]
        critic_loss = drl.losses.twin_critics(q, target, rows.get("weight"))
        self.optimizer.minimize(critic_loss, "encoder", "critic")
        self.params.follow(self.config.tau)
        metrics = {"critic_loss": critic_loss, "q_mean": drl.losses.mean(q, rows.get("valid_weight"))}

        if is_actors:
            loss, more = self.actor_loss(rows, x, noise, actor_masks)
            self.optimizer.minimize(loss, "actor", "log_alpha")
            metrics |= more
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))
