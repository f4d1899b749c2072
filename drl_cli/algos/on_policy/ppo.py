"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347), the clipped variant, for any action space.

Each batch is a whole rollout. An update estimates advantages (GAE, Schulman et al. 2015, arXiv 1506.02438), and then
makes several epochs of minibatches over the rollout. The policy that acts stores the log-probability of each action.
The loss uses the ratio pi(a|s) / pi_old(a|s), where pi_old is this stored probability. Rollouts may therefore come from
a policy that is a few versions old.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.on_policy._actor import Policy as Policy
from drl_cli.algos.on_policy._actor_critic import ActorCritic, ActorCriticConfig
from drl_cli.algos.on_policy._base import Metrics, mean_of
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses.critics import clipped_surrogate, mean
from drl_cli.losses.distributions import Distribution
from drl_cli.optim.gradients import Nets
from drl_cli.optim.schedules import linear
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import NonNegative, Positive

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """The options of PPO, which conf/algo/ppo.yaml explains."""

    clip: Positive
    entropy_coef: NonNegative
    normalize_advantage: bool
    target_kl: Positive | None
    value_clip: Positive | None
    kl_coef: NonNegative
    kl_target: Positive
    entropy_end: NonNegative | None


class Algorithm(ActorCritic):
    """Trains PPO's actor and critic from rollouts."""

    config: Config
    entropy_coef: Any  # a number, or a tensor that `update` fills
    fixed = ("kl_weight",)

    def setup(self, config: Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.entropy_coef = config.entropy_coef
        if config.entropy_end is not None:
            self.entropy_coef = torch.tensor(config.entropy_coef, device=self.context.device)
        if config.kl_coef:
            self.params["kl_weight"].flat.fill_(config.kl_coef)

    def extra_parts(self, config: Config) -> dict[str, int]:
        return {"kl_weight": 1} if config.kl_coef else {}

    def update(self, batch: Batch, counts: Counts) -> Update:
        config, clock = self.config, self.context.clock
        if config.entropy_end is not None:
            position = clock.of(counts)  # environment steps, or updates in a run without workers
            coef = linear(position, start=config.entropy_coef, end=config.entropy_end, length=clock.total)
            self.entropy_coef.fill_(coef)  # in place, because a compiled step reads this tensor
        return super().update(batch, counts)

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        if self.config.value_clip is not None:
            rollout.rows["value"] = value
        if self.config.kl_coef:
            self.keep_policy(rollout, features)

    def scaled(self, advantage: Tensor, rollout: EncodedRollouts) -> Tensor:
        return rollout.normalized(advantage) if self.config.normalize_advantage else advantage

    def policy_loss(self, nets: Nets, policy: Distribution, rows: Batch) -> tuple[Tensor, Metrics]:
        """Return PPO's loss of the policy (a scalar), and metrics.

        The loss is minus the clipped surrogate (eq. 7), minus the entropy bonus. If `kl_coef` is above 0, the penalty
        on the KL divergence from the old policy is added (eq. 8). A Gaussian's penalty is on the sum of its `kl_parts`.
        """
        config, weight = self.config, rows.get("weight")
        log_ratio = policy.log_prob(rows["action"]) - rows["log_prob"]
        surrogate = clipped_surrogate(log_ratio, rows["advantage"], config.clip, weight)
        entropy = mean(policy.entropy_at(rows["action"]), weight)
        loss = surrogate - self.entropy_coef * entropy
        metrics = {"policy_loss": surrogate, "entropy": entropy}
        with torch.no_grad():
            ratio = log_ratio.exp()
            # The mean of ratio - 1 - log(ratio) estimates KL(pi_old || pi) with a low variance.
            metrics["approx_kl"] = mean(ratio - 1.0 - log_ratio, weight)
            is_clipped = (ratio - 1.0).abs() > config.clip
            metrics["clip_fraction"] = mean(is_clipped.float(), weight)
        if config.kl_coef:
            kl_parts = self.kept_policy(rows).kl_parts(policy)  # a Gaussian has two: of the mean, and of the deviation
            kl = mean(sum(kl_parts), weight)
            loss = loss + nets.kl_weight.detach().sum() * kl  # the sum makes the tensor `[1]` a scalar
            metrics |= {"kl": kl, "kl_weight": nets.kl_weight.mean()}
        return loss, metrics

    def value_error(self, value: Tensor, rows: Batch) -> Tensor:
        """Return half the squared error `[M]` of the values `value` = V(obs) `[M]`.

        With `value_clip`, also compute the error of a clipped value, which differs from the value before the update by
        at most `value_clip`, and return the larger error (Engstrom et al. 2020, arXiv 2005.12729, section 3).
        """
        error, clip = super().value_error(value, rows), self.config.value_clip
        if clip is None:
            return error
        old_value = rows["value"]
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        return torch.maximum(error, super().value_error(clipped, rows))

    def is_enough(self, epoch: Sequence[Metrics]) -> bool:
        """Return True if `target_kl` is set and the mean `approx_kl` of the epoch, over all trainers, is above it."""
        if self.config.target_kl is None:
            return False
        kl = mean_of(epoch, "approx_kl")
        self.context.group.mean_(kl)
        return bool(kl > self.config.target_kl)

    def after_epochs(self, batch: Batch, epoch: Sequence[Metrics]) -> Metrics:
        """Adapt the weight of the KL penalty (section 4), and train the reward module; return the module's metrics.

        Double the weight if the epoch's mean KL divergence is above 1.5 `kl_target`; halve it below `kl_target` / 1.5.
        The weight stays in [1e-4, 1e4], so that it can return to a useful size within few updates.
        """
        if self.config.kl_coef:
            kl = mean_of(epoch, "kl")
            self.context.group.mean_(kl)
            is_large = kl > 1.5 * self.config.kl_target
            is_small = kl < self.config.kl_target / 1.5
            factor = torch.where(is_large, 2.0, torch.where(is_small, 0.5, 1.0))
            weight = self.params["kl_weight"].flat
            weight.copy_((weight * factor).clamp(1e-4, 1e4))
        return super().after_epochs(batch, epoch)
