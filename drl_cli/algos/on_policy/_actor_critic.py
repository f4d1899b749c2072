"""The base of algorithms that learn an actor and a critic from rollouts: PPO, A2C, IMPALA, APPO and V-MPO."""

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
    """Options that every algorithm with an actor and a critic on rollouts has."""

    gae_lambda: Fraction
    value_coef: Positive
    squash: bool


class ActorCritic(OnPolicy):
    """Learns actor and critic in a trainer. Actor and critic share only the encoder.

    A subclass defines `policy_loss`, and may replace the advantages or do something before or after each epoch.
    """

    lrs: Mapping[str, float] = {}
    """The learning rates of parts that do not have the learning rate `lr`."""
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
            self.fixed = (*self.fixed, PART)  # learns once after all epochs
        self.build(("actor", "log_std"), config.lr, lrs, self.targets, **parts)
        if stream is not None:
            self.params.generator(PART, self.seed + 4, on_cpu=True)
        self.log_std = self.params["log_std"].flat

    def extra_parts(self, config: Any) -> dict[str, int]:
        """Return the sizes of parts that are trained besides actor and critic, and that the policy does not need."""
        return {}

    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Add the columns `advantage` and `target`, and return the explained variance.

        This is 1 - Var(target - value) / Var(target): 1 if the critic predicted all targets, 0 if a constant had
        predicted them as well.
        """
        features, next_features = rollout.features()
        value, next_value = (self.critic(x).squeeze(-1) for x in (features, next_features))
        self.remember(rollout, features, value)
        advantage, target = self.advantages(batch, rollout, features, value, next_value)
        explained = 1.0 - (advantage.var(correction=0) / target.var(correction=0).clamp_min(1e-8)).nan_to_num()
        if self.stream is not None:
            stream = self.stream.batch(batch, self.stream.rewards(batch))
            value, next_value = (self.reward_critic(x).squeeze(-1) for x in (features, next_features))
            bonus, rollout.rows["reward_target"] = self.advantages(stream, rollout, features, value, next_value)
            advantage = advantage + self.stream.module.coef * bonus
        rollout.rows["target"], rollout.rows["advantage"] = target, self.scaled(advantage, rollout)
        return {"explained_variance": explained}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Add columns to `rollout.rows` before the first epoch, given the rows' features `[N, F]` and V(obs) `[N]`."""

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages and the critic's targets of all rows, `[N]` each.

        `features` `[N, F]`, V(obs) `value` `[N]` and V(next_obs) `next_value` `[N]` are of the current parameters.
        """
        reward, discount = batch["reward"], batch["discount"]
        advantage = gae(reward, discount, value, next_value, batch["cut"], self.config.gae_lambda)
        return advantage, advantage + value

    def scaled(self, advantage: Tensor, rollout: EncodedRollouts) -> Tensor:
        """Return the advantages `[N]` that the policy learns from."""
        return advantage

    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the sum of the actor's loss and of the critics' losses, half the squared errors of the values."""
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
        """Return the loss of the actor and of the extra parts, and metrics with `policy_loss`.

        The rows have the columns `advantage`, `log_prob` (of the policy that acted) and perhaps `weight`.
        """

    def value_error(self, value: Tensor, rows: Batch) -> Tensor:
        """Return half the squared error `[M]` of the values `[M]`. The column `target` is the same in all epochs."""
        error: Tensor = value - rows["target"]
        return 0.5 * error.square()

    def after_epochs(self, batch: Batch, epoch: Sequence[Metrics]) -> Metrics:
        return {} if self.stream is None else {"reward_loss": self.stream.learn(batch, self.optimizer)}

    def distribution(self, out: Tensor, log_std: Tensor, rows: Batch) -> Distribution:
        """Return the policy in these rows, given the actor's outputs `[N, outputs]`."""
        return distribution(self.action, self.config.squash, out, log_std, rows.get("action_mask"))

    def keep_policy(self, rollout: EncodedRollouts, features: Tensor) -> None:
        """Add columns from which `kept_policy` returns the present policy, whose divergence a loss may bound."""
        out = self.actor(features)
        rollout.rows["old_out"] = out
        if self.action.kind == "box":
            rollout.rows["old_log_std"] = self.log_std.expand_as(out).clone()

    def kept_policy(self, rows: Batch) -> Distribution:
        """Return the policy at the start of the update in these rows."""
        return self.distribution(rows["old_out"], rows.get("old_log_std", self.log_std), rows)
