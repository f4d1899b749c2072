"""The base class of algorithms that learn an actor and a critic from rollouts: PPO, A2C, IMPALA, APPO and V-MPO."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.on_policy._actor import check_squash, distribution, log_std_size
from drl_cli.algos.on_policy._base import Metrics, OnPolicy, OnPolicyConfig
from drl_cli.algos.on_policy.rewards.stream import PART, RewardStream
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses.critics import mean
from drl_cli.losses.distributions import Distribution
from drl_cli.losses.returns import gae
from drl_cli.optim.gradients import Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(OnPolicyConfig):
    """Options of all algorithms that learn an actor and a critic from rollouts."""

    gae_lambda: Fraction
    value_coef: Positive
    squash: bool


class ActorCritic(OnPolicy):
    """Learns actor and critic in a trainer. Actor and critic share only the encoder.

    A subclass defines `policy_loss`. It may override the other methods, such as `advantages` or `before_epoch`.
    """

    lrs: Mapping[str, float] = {}
    """The learning rates of all parts that do not learn with `config.lr`, by part."""
    targets: tuple[str, ...] = ()
    """Parts that have a target network."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        check_squash(config, spec)
        self.action = spec.action
        self.actor, self.critic = self.mlp(spec.action.size, last=0.01), self.mlp(1)
        parts: dict[str, Any] = {"actor": self.actor, "log_std": log_std_size(spec.action), "critic": self.critic}
        parts |= self.extra_parts(config)
        lrs = dict(self.lrs)
        self.stream = stream = RewardStream.build(self.context, self.network, spec, self.seed + 3)
        if stream is not None:
            self.reward_critic = self.mlp(1)
            parts |= {"reward_critic": self.reward_critic, **stream.modules}
            lrs[PART] = stream.module.lr
            self.fixed = (*self.fixed, PART)  # minibatches do not train the reward module; `after_epochs` does
        self.build(("actor", "log_std"), config.lr, lrs, self.targets, **parts)
        if stream is not None:
            self.params.generator(PART, self.seed + 4, on_cpu=True)
        self.log_std = self.params["log_std"].flat

    def extra_parts(self, config: Any) -> dict[str, int]:
        """Return the sizes of additional trained parts, by name. The policy does not need these parts."""
        return {}

    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Add the columns `advantage` and `target` to `rollout.rows`, and return the critic's explained variance.

        The explained variance is 1 - Var(advantage) / Var(target); with GAE, the advantage is target - value. It is 1
        if the critic predicts all targets exactly, and 0 if the critic predicts no better than a constant.
        """
        features, next_features = rollout.features()
        value, next_value = (self.critic(x).squeeze(-1) for x in (features, next_features))
        self.remember(rollout, features, value)
        advantage, target = self.advantages(batch, rollout, features, value, next_value)
        error_ratio = advantage.var(correction=0) / target.var(correction=0).clamp_min(1e-8)
        explained = 1.0 - error_ratio.nan_to_num()
        if self.stream is not None:
            stream = self.stream.batch(batch, self.stream.rewards(batch))
            value, next_value = (self.reward_critic(x).squeeze(-1) for x in (features, next_features))
            bonus, rollout.rows["reward_target"] = self.advantages(stream, rollout, features, value, next_value)
            advantage = advantage + self.stream.module.coef * bonus
        rollout.rows["target"], rollout.rows["advantage"] = target, self.scaled(advantage, rollout)
        return {"explained_variance": explained}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Add columns to `rollout.rows` before the first epoch, given the rows' features `[N, F]` and V(obs) `[N]`.

        The default adds none.
        """

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages and the critic's targets of all rows, `[N]` each; the default is GAE.

        `features` `[N, F]` of obs, `value` = V(obs) `[N]` and `next_value` = V(next_obs) `[N]` are computed with the
        current parameters.
        """
        reward, discount = batch["reward"], batch["discount"]
        advantage = gae(reward, discount, value, next_value, batch["cut"], self.config.gae_lambda)
        return advantage, advantage + value

    def scaled(self, advantage: Tensor, rollout: EncodedRollouts) -> Tensor:
        """Return the advantages `[N]` as the policy loss uses them; the default returns `advantage` unchanged."""
        return advantage

    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the actor's loss plus `value_coef` times the loss of the critics, and the metrics.

        A critic's loss is half the mean squared error of its values. With a reward module, there are two critics.
        """
        features, weight = self.features(nets, rows), rows.get("weight")
        policy = self.distribution(nets.actor(features), nets.log_std, rows)
        policy_loss, metrics = self.policy_loss(nets, policy, rows)
        value_loss = mean(self.value_error(nets.critic(features, masks).squeeze(-1), rows), weight)
        if self.stream is not None:
            error = nets.reward_critic(features).squeeze(-1) - rows["reward_target"]
            value_loss = value_loss + mean(0.5 * error.square(), weight)
        metrics = {"policy_loss": metrics.pop("policy_loss"), "value_loss": value_loss, **metrics}
        return policy_loss + self.config.value_coef * value_loss, metrics

    @abstractmethod
    def policy_loss(self, nets: Nets, policy: Distribution, rows: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of the actor and of the extra parts, and metrics that include `policy_loss`.

        The rows `[M, ...]` have the columns `action`, `advantage`, `log_prob` (of the policy that acted) and perhaps
        `weight`.
        """

    def value_error(self, value: Tensor, rows: Batch) -> Tensor:
        """Return half the squared error `[M]` of the values V(obs) `[M]` from the column `target`."""
        error: Tensor = value - rows["target"]
        return 0.5 * error.square()

    def after_epochs(self, batch: Batch, epoch: Sequence[Metrics]) -> Metrics:
        """Train the reward module, if there is one, and return its mean loss as a metric."""
        return {} if self.stream is None else {"reward_loss": self.stream.learn(batch, self.optimizer)}

    def distribution(self, out: Tensor, log_std: Tensor, rows: Batch) -> Distribution:
        """Return the distribution of actions in these rows, given the actor's outputs `[N, outputs]`."""
        return distribution(self.action, self.config.squash, out, log_std, rows.get("action_mask"))

    def keep_policy(self, rollout: EncodedRollouts, features: Tensor) -> None:
        """Store the present policy in columns of `rollout.rows`. `kept_policy` returns it during the epochs.

        A loss can then bound the KL divergence from this policy.
        """
        out = self.actor(features)
        rollout.rows["old_out"] = out
        if self.action.kind == "box":
            rollout.rows["old_log_std"] = self.log_std.expand_as(out).clone()

    def kept_policy(self, rows: Batch) -> Distribution:
        """Return the distribution that the policy had in these rows at the start of the update."""
        return self.distribution(rows["old_out"], rows.get("old_log_std", self.log_std), rows)
