"""CQL (Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", arXiv 2006.04779), CQL(H).

CQL is SAC whose critics learn lower values for actions that are not in the data. For each state, the loss contains the
log of the sum of exp(Q) over all actions, minus Q of the data's action. The sum is estimated by importance sampling,
with uniform actions and actions of the policy (appendix F).
"""

import math
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy, squashed
from drl_cli.algos.off_policy._soft import SoftConfig
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.losses.distributions import TanhGaussian
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

ACTIONS, TABLES = sac.ACTIONS, sac.TABLES


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Options of CQL."""

    actor_lr: Positive
    tau: Fraction
    cql_alpha: NonNegative
    samples: Count


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(sac.Algorithm):
    """Learns actor, critics and temperature in a trainer. The networks and the actor's loss are those of SAC."""

    def rates(self, config: Config) -> dict[str, float]:
        return {**super().rates(config), "actor": config.actor_lr}

    def draws(self, rows: int, trains_actor: bool) -> tuple[Random, Random]:
        """Also draw `policy`, normal noise, and `uniform`, for the sampled actions of the conservative term."""
        critics, actor = super().draws(rows, trains_actor)
        num = self.config.samples * self.size
        critics["policy"] = self.context.randn(rows, 2 * num, self.noise)
        critics["uniform"] = self.context.rand(rows, num, self.noise)
        return critics, actor

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of both critics plus the conservative term (eq. 4)."""
        view, weight, valid = self.see(nets, rows), rows.get("weight"), rows.get("valid_weight")
        with torch.no_grad():
            next_action, _ = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)
            target = rows["reward"] + rows["discount"] * next_q.amin(0)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        bellman = twin_critics(q, target, weight)
        gap = self.all_actions(nets, view, rows, random) - q
        conservative = self.config.cql_alpha * mean(gap.sum(0), weight)
        metrics = {"critic_loss": bellman, "conservative_loss": conservative, "q_mean": mean(q, valid)}
        columns = {"td_error": (q - target).abs().mean(0), "features": view.obs}
        return bellman + conservative, metrics | columns

    def all_actions(self, nets: Nets, view: Any, rows: Batch, random: Random) -> Tensor:
        """Return an estimate of log sum_a exp(Q(s, a)) for both critics, `[2, B]`, up to a constant.

        There are S sampled actions of each kind: of the policy in s, of the policy in s', and uniform. Each exp(Q) is
        divided by the density of its action.
        """
        num, samples = len(rows["reward"]), self.config.samples

        def policy_actions(features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            inner = squashed(nets.actor(features)).inner
            return TanhGaussian(inner.mean, inner.log_std).sample_log_prob(noise)

        with torch.no_grad():
            noise, next_noise = random["policy"].view(num, 2, samples, self.size).permute(1, 2, 0, 3)  # [S, B, A] each
            action, log_prob = policy_actions(view.obs, noise)
            next_action, next_log_prob = policy_actions(view.next_obs, next_noise)
            uniform = random["uniform"].view(num, samples, self.size).transpose(0, 1) * 2.0 - 1.0
            uniform_log_prob = torch.full_like(log_prob, -self.size * math.log(2.0))  # the density on [-1, 1] is 1/2
            actions = torch.cat([action, next_action, uniform])  # [3 S, B, A]
            log_probs = torch.cat([log_prob, next_log_prob, uniform_log_prob])  # [3 S, B]
        masks = [mask.repeat(1, 3 * samples, 1) for mask in random["masks"]]
        repeated = view.learned.repeat(3 * samples, 1)
        q = nets.critic(repeated, actions.flatten(0, 1), masks).view(2, 3 * samples, num)
        return (self.bounded(q, rows) - log_probs).logsumexp(1)

    def bounded(self, q: Tensor, rows: Batch) -> Tensor:
        """Return the values `[2, 3 S, B]` of the sampled actions; the default returns `q` unchanged. See Cal-QL."""
        return q
