"""The base class of actor-critic algorithms that learn from rollouts: PPO, A2C, IMPALA, APPO and V-MPO."""

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
    """Options of all actor-critic algorithms that learn from rollouts."""

    gae_lambda: Fraction
    value_coef: Positive
    squash: bool


class ActorCritic(OnPolicy):
    """Trains an actor and a critic from rollouts. The two networks share only the encoder of the observations.

    A subclass defines `policy_loss`. It may override other methods, such as `advantages` or `before_epoch`.
    """

    lrs: Mapping[str, float] = {}
    """The learning rates of networks and tensors that do not learn with `config.lr`, by name."""
    targets: tuple[str, ...] = ()
    """The names of the networks and tensors that have a target network."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        check_squash(config, spec)
        self.action = spec.action
        # The small weights of the last layer make a first policy that hardly depends on the state.
        self.actor = self.mlp(spec.action.size, last=0.01)
        self.critic = self.mlp(1)
        parts: dict[str, Any] = {"actor": self.actor, "log_std": log_std_size(spec.action), "critic": self.critic}
        parts |= self.extra_parts(config)
        lrs = dict(self.lrs)
        self.stream = stream = RewardStream.build(self.context, self.network, spec, self.seed + 3)  # None: reward=none
        if stream is not None:
            self.reward_critic = self.mlp(1)
            parts |= {"reward_critic": self.reward_critic, **stream.modules}
            lrs[PART] = stream.module.lr
            self.fixed = (*self.fixed, PART)  # minibatches do not train the reward module; `after_epochs` does
        self.build(policy=("actor", "log_std"), lr=config.lr, lrs=lrs, targets=self.targets, **parts)
        if stream is not None:
            self.params.generator(PART, self.seed + 4, on_cpu=True)  # shuffles the reward module's minibatches
        self.log_std = self.params["log_std"].flat  # a view, which changes with the parameters

    def extra_parts(self, config: Any) -> dict[str, int]:
        """Return {name: size} of additional tensors for `build`, such as dual variables. Acting does not need them."""
        return {}

    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Store the columns `advantage` and `target` `[N]` in `rollout.rows`; return the metric `explained_variance`.

        `target` has the critic's targets. The metric is `1 - Var(advantage) / Var(target)`, with the advantages of the
        environment's rewards before scaling. It is 1 if the critic predicts all targets exactly, and about 0 if the
        critic is no better than a constant. With a reward module, the column `advantage` includes the advantages of the
        intrinsic rewards, times `coef`, and the column `reward_target` has the targets of the intrinsic critic.
        """
        features, next_features = rollout.features()
        value, next_value = (self.critic(x).squeeze(-1) for x in (features, next_features))
        self.remember(rollout, features, value)
        advantage, target = self.advantages(batch, rollout, features, value, next_value)
        unexplained = advantage.var(correction=0) / target.var(correction=0).clamp_min(1e-8)
        if self.stream is not None:
            intrinsic = self.stream.batch(batch, self.stream.rewards(batch))
            value, next_value = (self.reward_critic(x).squeeze(-1) for x in (features, next_features))
            intrinsic_advantage, reward_target = self.advantages(intrinsic, rollout, features, value, next_value)
            rollout.rows["reward_target"] = reward_target
            advantage = advantage + self.stream.module.coef * intrinsic_advantage
        rollout.rows["target"] = target
        rollout.rows["advantage"] = self.scaled(advantage, rollout)
        return {"explained_variance": 1.0 - unexplained}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Store more columns in `rollout.rows` before the first epoch, such as the old policy; the default stores none.

        `features` `[N, F]` are the encoder's outputs for `obs`, and `value` `[N]` is V(obs).
        """

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages and the critic's targets of N transitions, `[N]` each; the default is GAE.

        `features` `[N, F]` are the encoder's outputs for `obs`. `value` `[N]` is V(obs), and `next_value` `[N]` is
        V(next_obs). The current parameters computed all three.
        """
        reward, discount = batch["reward"], batch["discount"]
        advantage = gae(reward, discount, value, next_value, batch["cut"], self.config.gae_lambda)
        return advantage, advantage + value

    def scaled(self, advantage: Tensor, rollout: EncodedRollouts) -> Tensor:
        """Return the advantages `[N]` for the policy loss, normalised for example; the default returns `advantage`."""
        return advantage

    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the loss of a minibatch (a scalar), and metrics.

        The loss is the policy loss plus `value_coef` times the value loss. The value loss is half the mean squared
        error of the critic. With a reward module, the value loss includes the same error of the intrinsic critic.
        """
        features, weight = self.features(nets, rows), rows.get("weight")
        policy = self.distribution(nets.actor(features), nets.log_std, rows)
        policy_loss, metrics = self.policy_loss(nets, policy, rows)
        value = nets.critic(features, masks).squeeze(-1)
        value_loss = mean(self.value_error(value, rows), weight)
        if self.stream is not None:
            error = nets.reward_critic(features).squeeze(-1) - rows["reward_target"]
            value_loss = value_loss + mean(0.5 * error.square(), weight)
        metrics = {"policy_loss": metrics["policy_loss"], "value_loss": value_loss} | metrics  # these two come first
        return policy_loss + self.config.value_coef * value_loss, metrics

    @abstractmethod
    def policy_loss(self, nets: Nets, policy: Distribution, rows: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of the actor and of `extra_parts`, and metrics. The metrics must include `policy_loss`.

        `policy` has the current policy's distributions in the M states of a minibatch. `rows` has the columns `action`,
        `advantage`, perhaps `weight` (the factors of the transitions' losses), the columns that `remember` stored, and
        `log_prob` of the policy that acted (IMPALA: of the reference policy).
        """

    def value_error(self, value: Tensor, rows: Batch) -> Tensor:
        """Return half the squared error of the critic, (V(obs) - target)^2 / 2 `[M]`; `value` is V(obs) `[M]`."""
        error: Tensor = value - rows["target"]
        return 0.5 * error.square()

    def after_epochs(self, batch: Batch, epoch: Sequence[Metrics]) -> Metrics:
        """Train the reward module, and return its mean loss as the metric `reward_loss`; return {} without a module."""
        return {} if self.stream is None else {"reward_loss": self.stream.learn(batch, self.optimizer)}

    def distribution(self, out: Tensor, log_std: Tensor, rows: Batch) -> Distribution:
        """Return the distribution of actions in the N states of `rows`, given the actor's outputs `[N, outputs]`."""
        return distribution(self.action, self.config.squash, out, log_std=log_std, mask=rows.get("action_mask"))

    def keep_policy(self, rollout: EncodedRollouts, features: Tensor) -> None:
        """Store the current policy's distributions in `rollout.rows`. A loss can bound the KL divergence from them.

        `features` `[N, F]` are the encoder's outputs for `obs`. The new columns are `old_out` and `old_log_std` (Box).
        """
        out = self.actor(features)
        rollout.rows["old_out"] = out
        if self.action.kind == "box":
            rollout.rows["old_log_std"] = self.log_std.expand_as(out).clone()

    def kept_policy(self, rows: Batch) -> Distribution:
        """Return the distributions that `keep_policy` stored for these rows at the start of the update."""
        return self.distribution(rows["old_out"], rows.get("old_log_std", self.log_std), rows)
