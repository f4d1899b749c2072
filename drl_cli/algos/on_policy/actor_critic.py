"""The base of algorithms that learn an actor and a critic from rollouts: PPO, A2C, IMPALA, APPO and V-MPO."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.algos.on_policy.actor import check_squash, log_std_size
from drl_cli.algos.rewards.stream import PART, RewardStream
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses import policy as losses
from drl_cli.losses.returns import gae_of_tensors
from drl_cli.losses.value import half_square
from drl_cli.networks.mlp import FlatMLP
from drl_cli.optim.optimizer import NotFinite
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(LearnerConfig):
    """Options that every algorithm with an actor and a critic on rollouts has."""

    n_step: Literal[1]
    gae_lambda: Fraction
    epochs: Count
    minibatch_size: Count | None
    seq_len: Count
    value_coef: Positive
    squash: bool = False


class ActorCritic(NetworkAlgorithm):
    """Learns actor and critic in a trainer. Actor and critic share only the encoder.

    A subclass defines `policy_gradients`, and may replace the advantages or do something before or after each epoch.
    """

    config: Any  # a Config derived from ActorCriticConfig
    lrs: Mapping[str, float] = {}
    """The learning rates of parts that do not have the learning rate `lr`."""
    fixed: tuple[str, ...] = ()
    """Parts that the optimizer does not change."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        self.config, self.action = config, spec.action
        check_squash(config, spec)
        parts: dict[str, Head | int] = {
            "actor": self.head(spec.action.size, last=0.01),
            "log_std": log_std_size(spec.action),  # all values start at 0
            "critic": self.head(1),
        }
        parts |= self.extra_parts(config)
        self.stream = stream = RewardStream.build(self.context, self.network, spec, self.seed + 3)
        if stream is not None:
            parts["reward_critic"] = self.head(1)
        policy, lrs = ("actor", "log_std"), {**self.lrs, **({} if stream is None else {PART: stream.module.lr})}
        built = self.build(parts, policy, config.lr, lrs, {} if stream is None else stream.modules)
        self.actor, self.critic, self.reward_critic = built["actor"], built["critic"], built.get("reward_critic")
        own = tuple(part for part in self.params.slices if part not in (PART, *self.fixed))
        self.own_parts = () if len(own) == len(self.params.slices) else own
        if stream is not None:
            self.params.generator(PART, self.seed + 4, on_cpu=True)
        self.log_std, self.d_log_std = self.params["log_std"].flat, self.params["log_std"].grad
        self.shuffle = self.params.generator("shuffle", self.seed + 1, on_cpu=True)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rollout, explained = self._rollout(batch)
        size = self.config.minibatch_size or rollout.num * self.context.group.size
        metrics: list[dict[str, Tensor]] = []
        skipped = 0
        for _ in range(self.config.epochs):
            self.before_epoch(rollout)
            steps = [self._step(minibatch) for minibatch in rollout.minibatches(self.shuffle, size)]
            epoch = [step for step in steps if step]
            metrics += epoch
            skipped += len(steps) - len(epoch)
            if epoch and self.is_enough(epoch):
                break
        if metrics:
            self.after_epochs(epoch or metrics)
        means = {name: mean_of(metrics, name) for name in metrics[0]} if metrics else {}
        means |= {"explained_variance": explained} if metrics else {}
        if self.stream is not None and metrics:
            means |= {"reward_loss": self.stream.learn(batch, self.optimizer)}
        return Update(means, steps=len(metrics), skipped=skipped)

    def _rollout(self, batch: Batch) -> tuple[EncodedRollouts, Tensor]:
        """Return a rollout of the batch's rows, with advantages and value targets as columns, and how good values were.

        The last result is the explained variance, 1 - Var(target - value) / Var(target): 1 if the critic predicted all
        targets, 0 if a constant had predicted them as well.
        """
        config = self.config
        rollout = EncodedRollouts(batch, self.encoder, self.context.group, config.seq_len)
        features = rollout.features()
        value, next_value = (self.critic.forward(x)[0][0, :, 0] for x in features)
        self.remember(rollout, features[0], value)
        advantage, target = self.advantages(batch, rollout, features[0], value, next_value)
        rollout.rows["target"] = target
        explained = 1.0 - (advantage.var(correction=0) / target.var(correction=0).clamp_min(1e-8)).nan_to_num()
        if self.stream is not None and self.reward_critic is not None:
            rewards = self.stream.rewards(batch)
            own, following = (self.reward_critic.forward(x)[0][0, :, 0] for x in features)
            of_stream = self.stream.batch(batch, rewards)
            bonus, wanted = self.advantages(of_stream, rollout, features[0], own, following)
            rollout.rows["reward_target"] = wanted
            advantage = advantage + self.stream.module.coef * bonus
        rollout.rows["advantage"] = self.scaled(advantage, rollout)
        return rollout, explained

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages and the critic's targets of all rows, `[N]` each.

        `features` `[N, F]`, V(obs) `value` `[N]` and V(next_obs) `next_value` `[N]` are of the current parameters.
        """
        reward, discount = batch["reward"], batch["discount"]
        advantage = gae_of_tensors(reward, discount, value, next_value, batch["cut"], self.config.gae_lambda)
        return advantage, advantage + value

    def _step(self, minibatch: Batch) -> dict[str, Tensor]:
        """Make one gradient update from a minibatch `[M, ...]`; return metrics, or {} if the update was skipped."""
        view, rows = self.see(minibatch) if self.encoder.is_trainable else (None, dict(minibatch))
        rows["drop"] = self.masks(self.critic, rows["target"], is_mine=rows.pop("is_mine", None))
        metrics, d_obs = self.gradients(rows)
        try:
            self.step(view, d_obs, metrics["policy_loss"], metrics["value_loss"], parts=self.own_parts)
        except NotFinite:
            return {}
        return metrics

    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor | None]:
        """Write the gradients of actor and critic; return metrics, and d loss/d features if the encoder is trained."""
        learns = self.encoder.is_trainable
        out, trace = self.actor.forward(rows["obs"])
        metrics, d_out = self.policy_gradients(out[0], rows)
        d_obs = self.actor.backward(trace, d_out.unsqueeze(0), to_inputs=learns)

        # Critic: half the squared error. The value targets are the same in all epochs.
        value_loss, d_obs_critic = self.critic_gradients(self.critic, rows, "target", rows["drop"])
        if self.reward_critic is not None:
            reward_value_loss, d_obs_reward = self.critic_gradients(self.reward_critic, rows, "reward_target")
            value_loss = value_loss + reward_value_loss
            d_obs_critic = d_obs_critic + d_obs_reward if learns else d_obs_critic

        metrics = {"policy_loss": metrics.pop("policy_loss"), "value_loss": value_loss.mean(), **metrics}
        return metrics, d_obs + d_obs_critic if learns else None

    @abstractmethod
    def policy_gradients(self, out: Tensor, rows: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return metrics with `policy_loss`, and d loss/d out, given the actor's output `[M, outputs]`.

        The rows have the columns `advantage`, `log_prob` (of the policy that acted) and perhaps `valid_weight`, which
        multiplies each row's loss. Gradients of other parts, such as `log_std`, are written here.
        """

    def extra_parts(self, config: Any) -> dict[str, Head | int]:
        """Return, by name, parts that are trained besides actor and critic, and that the policy does not need."""
        return {}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Add columns to `rollout.rows` before the first epoch, given the rows' features `[N, F]` and V(obs) `[N]`."""

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        """Do something before each epoch, such as adding columns to `rollout.rows`."""

    def after_epochs(self, epoch: list[dict[str, Tensor]]) -> None:
        """Do something after the last epoch, given the metrics of the epoch's updates."""

    def is_enough(self, epoch: list[dict[str, Tensor]]) -> bool:
        """Return whether to make no further epoch with this rollout, given the metrics of the epoch's updates."""
        return False

    def scaled(self, advantage: Tensor, rollout: EncodedRollouts) -> Tensor:
        """Return the advantages `[N]` that the policy learns from."""
        return advantage

    def critic_gradients(
        self, critic: FlatMLP, rows: Batch, target: str, drop: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Any]:  # Any: d loss/d features, or None if the encoder is not trained
        """Write the gradient of a critic, given the column with its value targets; return the loss of each row."""
        share = rows.get("valid_weight")
        value, trace = critic.forward(rows["obs"], drop)
        value_loss, d_value = self.value_errors(value[0, :, 0], rows, target)
        if share is not None:
            value_loss, d_value = share * value_loss, share * d_value
        d_value = (self.config.value_coef / len(rows["obs"])) * d_value.view(1, -1, 1)
        return value_loss, critic.backward(trace, d_value, to_inputs=self.encoder.is_trainable)

    def value_errors(self, value: Tensor, rows: Batch, target: str) -> tuple[Tensor, Tensor]:
        """Return the loss of each row's value `[M]`, and its derivative, given the column with the targets."""
        return half_square(value - rows[target])

    def log_prob(self, out: Tensor, rows: Batch, log_std: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log-probability of the rows' actions and the entropy, `[M]` each, given the actor's output.

        `log_std` `[A]` (default: the policy's) is the log standard deviation of continuous actions.
        """
        if self.action.kind == "box":
            gaussian = losses.squashed_gaussian if self.config.squash else losses.gaussian
            return gaussian(out, self.log_std if log_std is None else log_std, rows["action"])
        logits = losses.permitted(out, rows.get("action_mask"))
        if self.action.kind == "discrete":
            return losses.categorical(logits, rows["action"])
        return losses.multi_categorical(logits, rows["action"], self.action.choices)

    def outputs(self, out: Tensor) -> dict[str, Tensor]:
        """Return the actor's output `[N, outputs]` as columns, which `kl` compares with later outputs."""
        if self.action.kind == "box":
            return {"old_out": out, "old_log_std": self.log_std.expand_as(out).clone()}
        return {"old_out": out}

    def kl(self, out: Tensor, rows: Batch) -> Tensor:
        """Return KL(old || new) of the rows with the columns of `outputs`, `[1, M]`, or `[2, M]` for box actions.

        The two rows for box actions are the divergences of the mean and of the standard deviation.
        """
        return torch.stack([kl for kl, _ in self._kl_parts(out, rows)])

    def kl_backward(self, out: Tensor, rows: Batch, d_kl: Tensor) -> Tensor:
        """Return d loss/d out, given d loss/d kl in the shape of `kl`; add to the gradient of log_std."""
        slopes = [slope for _, slope in self._kl_parts(out, rows)]
        if self.action.kind == "box":
            self.d_log_std += (d_kl[1].unsqueeze(-1) * slopes[1]).sum(0)
        return d_kl[0].unsqueeze(-1) * slopes[0]

    def _kl_parts(self, out: Tensor, rows: Batch) -> Sequence[tuple[Tensor, Tensor]]:
        if self.action.kind == "box":
            return losses.gaussian_kl(rows["old_out"], rows["old_log_std"], out, self.log_std.expand_as(out))
        old, now = (losses.permitted(x, rows.get("action_mask")) for x in (rows["old_out"], out))
        return [losses.multi_categorical_kl(old, now, self.action.choices)]

    def log_prob_backward(self, out: Tensor, rows: Batch, d_log_prob: Tensor, d_entropy: Tensor) -> Tensor:
        """Return d loss/d out, given d loss/d log_prob and d loss/d entropy `[M]`; write the gradient of log_std."""
        if self.action.kind == "box":
            backward = losses.squashed_gaussian_backward if self.config.squash else losses.gaussian_backward
            d_out, d_log_std = backward(out, self.log_std, rows["action"], d_log_prob, d_entropy)
            torch.sum(d_log_std, 0, out=self.d_log_std)
            return d_out
        logits = losses.permitted(out, rows.get("action_mask"))
        if self.action.kind == "discrete":
            return losses.categorical_backward(logits, rows["action"], d_log_prob, d_entropy)
        return losses.multi_categorical_backward(logits, rows["action"], self.action.choices, d_log_prob, d_entropy)


def mean_of(metrics: list[dict[str, Tensor]], name: str) -> Tensor:
    """Return the mean of the metric `name` over several updates."""
    return torch.stack([one[name] for one in metrics]).mean()
