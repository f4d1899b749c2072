"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347), the clipped variant, for any action space.

Each batch is a whole rollout. An update makes several epochs of minibatches over the rollout, with generalised
advantage estimates (Schulman et al. 2015, arXiv 1506.02438). The policy that chose an action stores the action's
log-probability. The probability ratio is relative to this stored value, so rollouts may be a few policy versions old.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head
from drl_cli.algos.on_policy.actor import Policy as Policy
from drl_cli.algos.on_policy.actor_critic import ActorCritic, ActorCriticConfig, mean_of
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses import policy as losses
from drl_cli.losses.value import clipped_half_square
from drl_cli.optim.schedules import linear
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import NonNegative, Positive

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Options of PPO."""

    clip: Positive
    entropy_coef: NonNegative
    normalize_advantage: bool
    target_kl: Positive | None
    value_clip: Positive | None = None
    kl_coef: NonNegative = 0.0
    kl_target: Positive = 0.01
    entropy_end: NonNegative | None = None


class Algorithm(ActorCritic):
    """Learns actor and critic in a trainer."""

    config: Config
    entropy_coef: Any  # a number, or a tensor that `update` sets
    fixed = ("kl_weight",)

    def setup(self, config: Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.entropy_coef = config.entropy_coef
        if config.kl_coef:
            self.params["kl_weight"].flat.fill_(config.kl_coef)

    def extra_parts(self, config: Config) -> dict[str, Head | int]:
        return {"kl_weight": 1} if config.kl_coef else {}

    def update(self, batch: Batch, counts: Counts) -> Update:
        config = self.config
        if config.entropy_end is not None:
            now = linear(counts.env_steps, config.entropy_coef, config.entropy_end, self.context.total_env_steps)
            self.entropy_coef = torch.tensor(now, device=self.context.device)
        return super().update(batch, counts)

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        if self.config.value_clip is not None:
            rollout.rows["value"] = value
        if self.config.kl_coef:
            rollout.rows.update(self.outputs(self.actor.forward(features)[0][0]))

    def value_errors(self, value: Tensor, rows: Batch, target: str) -> tuple[Tensor, Tensor]:
        if self.config.value_clip is None or target != "target":
            return super().value_errors(value, rows, target)
        return clipped_half_square(value, rows["value"], rows[target], self.config.value_clip)

    def policy_gradients(self, out: Tensor, rows: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return metrics, and d loss/d out; the loss is the clipped surrogate minus the entropy bonus."""
        config, share = self.config, rows.get("valid_weight")
        advantage = rows["advantage"] if share is None else share * rows["advantage"]
        log_prob, entropy = self.log_prob(out, rows)
        log_ratio = log_prob - rows["log_prob"]
        ratio = log_ratio.exp()
        policy_loss, d_ratio = losses.clipped_surrogate(ratio, advantage, config.clip)
        d_entropy = torch.ones_like(entropy) * (-self.entropy_coef / len(out))
        d_out = self.log_prob_backward(out, rows, d_ratio * ratio, d_entropy if share is None else share * d_entropy)
        by_row = {
            "entropy": entropy,
            "approx_kl": ratio - 1.0 - log_ratio,
            "clip_fraction": ((ratio - 1.0).abs() > config.clip).float(),
        }
        means = {name: (x if share is None else share * x).mean() for name, x in by_row.items()}
        if config.kl_coef:
            kl, weight = self.kl(out, rows), self.params["kl_weight"].flat
            share = torch.ones_like(kl[0]) if share is None else share
            d_out = d_out + self.kl_backward(out, rows, (weight * share / len(out)).expand_as(kl))
            means |= {"kl": (share * kl.sum(0)).mean(), "kl_weight": weight.mean()}
        return {"policy_loss": policy_loss, **means}, d_out

    def after_epochs(self, epoch: list[dict[str, Tensor]]) -> None:
        """Adapt the weight of the KL penalty (Schulman et al. 2017, section 4)."""
        if self.config.kl_coef:
            self.context.group.mean_(kl := mean_of(epoch, "kl"))
            is_large, is_small = kl > 1.5 * self.config.kl_target, kl < self.config.kl_target / 1.5
            weight = self.params["kl_weight"].flat
            weight.copy_((weight * torch.where(is_large, 2.0, torch.where(is_small, 0.5, 1.0))).clamp(1e-4, 1e4))

    def scaled(self, advantage: Tensor, rollout: EncodedRollouts) -> Tensor:
        return rollout.normalized(advantage) if self.config.normalize_advantage else advantage

    def is_enough(self, epoch: list[dict[str, Tensor]]) -> bool:
        if self.config.target_kl is None:
            return False
        self.context.group.mean_(kl := mean_of(epoch, "approx_kl"))
        return bool(kl > self.config.target_kl)
