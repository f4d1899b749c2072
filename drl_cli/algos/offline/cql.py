"""CQL (Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", arXiv 2006.04779).

CQL is SAC with a conservative term in the loss of the critics: log(integral of exp(Q(s, a)) over all actions) minus Q
of the batch's action. This term lowers Q of actions that are not in the data (the paper's variant CQL(H)). The integral
is estimated by importance sampling, with uniform actions and actions of the policy (appendix F).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy.sac import networks, policy
from drl_cli.api import torch

ACTIONS, TABLES = sac.ACTIONS, sac.TABLES
__all__ = ["Algorithm", "Config", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of CQL, which conf/algo/cql.yaml explains."""

    lr: drl.Positive
    alpha_lr: drl.Positive
    actor_lr: drl.Positive
    tau: drl.Fraction
    initial_alpha: drl.Positive
    target_entropy: float | None
    actor_period: drl.Count
    cql_alpha: drl.NonNegative
    samples: drl.Count


class Algorithm(sac.Algorithm):
    """Trains the actor, the critics and the temperature as SAC does, but with CQL's loss of the critics."""

    rates = {"actor": "actor_lr", "log_alpha": "alpha_lr"}

    def critic_loss(
        self, batch: drl.Batch, rows: drl.Batch, seen: Any, noise: torch.Tensor
    ) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return the squared Bellman error of both critics plus the conservative term (eq. 4), as SAC's does.

        As in the authors' code, the Bellman error has no factor 1/2, and the target has no entropy bonus.
        """
        nets, num, samples = self.nets, len(noise), self.config.samples * self.spec.action.size
        masks, target_masks = (self.masks("critic", num) for _ in range(2))
        (policy_noise,) = self.randn(num, 2 * samples)
        uniform = self.context.rand(num, samples, self.generator)
        with torch.no_grad():
            next_action, _ = drl.TanhGaussian.of(nets.actor(seen.next_obs)).sample_log_prob(noise)
            next_x = nets.target.encoder.see(batch).next_obs
            next_q = nets.target.critic(next_x, next_action, target_masks)
            target = rows["reward"] + rows["discount"] * next_q.amin(0)
        # `seen.learned` and `seen.obs` are equal features, but only the gradient of `seen.learned` trains the encoder.
        q = nets.critic(seen.learned, rows["action"], masks)  # [2, B]
        bellman = drl.losses.twin_critics(q, target, rows.get("weight"))
        gap = self.log_sum_exp(rows, seen, policy_noise, uniform, masks) - q
        conservative = self.config.cql_alpha * drl.losses.mean(gap.sum(0), rows.get("weight"))
        q_mean = drl.losses.mean(q, rows.get("valid_weight"))
        metrics = {"critic_loss": bellman, "conservative_loss": conservative, "q_mean": q_mean}
        return bellman + conservative, metrics, (q - target).abs().mean(0)

    def log_sum_exp(
        self,
        rows: drl.Batch,
        seen: Any,
        noise: torch.Tensor,
        uniform: torch.Tensor,
        masks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return an estimate of log(integral of exp(Q(s, a)) over all actions a) for each critic and state, `[2, B]`.

        The estimate uses Q(s, a) of 3 S actions in each state s: S samples of the policy in s, S samples of the policy
        in the next state, and S uniform actions. `noise` `[B, 2 S A]` is for the policy, and `uniform` `[B, S A]`.
        Each exp(Q) is divided by the density from which its action was drawn. The sum is not divided by 3 S, because a
        constant does not change the gradient.
        """
        actor, size, num, samples = self.nets.actor, self.spec.action.size, len(noise), self.config.samples
        with torch.no_grad():
            now, then = noise.view(num, 2, samples, size).permute(1, 2, 0, 3)  # [S, B, A] each
            action, log_prob = drl.TanhGaussian.of(actor(seen.obs)).sample_log_prob(now)  # [S, B, A] and [S, B]
            next_action, next_log_prob = drl.TanhGaussian.of(actor(seen.next_obs)).sample_log_prob(then)
            uniform = uniform.view(num, samples, size).transpose(0, 1) * 2.0 - 1.0  # in [-1, 1)
            uniform_log_prob = torch.full_like(log_prob, -size * math.log(2.0))  # the density on [-1, 1] is 1/2
            actions = torch.cat([action, next_action, uniform])  # [3 S, B, A]
            log_probs = torch.cat([log_prob, next_log_prob, uniform_log_prob])  # [3 S, B]
        # All 3 S actions of a state get the features and the dropout masks of this state.
        features = seen.learned.repeat(3 * samples, 1)  # [3 S B, F]
        repeated = [mask.repeat(1, 3 * samples, 1) for mask in masks]  # [2, 3 S B, units] each
        q = self.nets.critic(features, actions.flatten(0, 1), repeated).view(2, 3 * samples, num)
        return (self.calibrated(q, rows) - log_probs).logsumexp(1)

    def calibrated(self, q: torch.Tensor, rows: drl.Batch) -> torch.Tensor:
        """Return Q of the sampled actions, `[2, 3 S, B]`, unchanged. Cal-QL overrides this method."""
        return q
