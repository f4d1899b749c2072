"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347), the clipped variant, for any action space.

Each batch is a whole rollout. An update makes several epochs of minibatches over the rollout, with generalised
advantage estimates (Schulman et al. 2015, arXiv 1506.02438). The policy that chose an action stores the action's
log-probability. The probability ratio is relative to this stored value, so rollouts may be a few policy versions old.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.algos.policy import NetworkPolicy, allowed, sample_choices
from drl_cli.algos.rewards.stream import PART, RewardStream
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses import policy as losses
from drl_cli.losses.returns import gae_of_tensors
from drl_cli.losses.value import half_square
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import FlatMLP
from drl_cli.optim.optimizer import NotFinite
from drl_cli.types import ActionSpec, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """Options of PPO."""

    n_step: Literal[1]
    gae_lambda: Fraction
    clip: Positive
    epochs: Count
    minibatch_size: Count | None
    seq_len: Count
    entropy_coef: NonNegative
    value_coef: Positive
    normalize_advantage: bool
    target_kl: Positive | None


def log_std_size(action: ActionSpec) -> int:
    """Return the number of log standard deviations: one for each dimension of a box action, otherwise 0."""
    return action.size if action.kind == "box" else 0


class Policy(NetworkPolicy):
    """The actor: a Gaussian for box actions, a softmax for each discrete choice.

    The head's outputs are the mean of each dimension of a box action, or the logits of the choices. The environment
    clips box actions to [-1, 1].
    """

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.shapes = [*self.shapes, (log_std_size(spec.action),)]
        self.log_std = np.zeros(0, np.float32)

    @staticmethod
    def extra_columns(config: Config, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {"log_prob": Column((), "float32"), **NetworkPolicy.extra_columns(config, network, spec)}

    def load(self, params: Array) -> None:
        super().load(params)
        *self.params, self.log_std = self.params

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        if self.action.kind == "box":
            noise = self.rng.standard_normal(out.shape, dtype=np.float32)
            log_prob = (-0.5 * noise**2 - self.log_std - np.float32(0.5 * losses.LOG_2PI)).sum(-1)
            return {"action": out + np.exp(self.log_std) * noise, "log_prob": log_prob, **memory}
        logits = allowed(out, obs)
        action = sample_choices(logits, self.action.choices, self.rng)
        return {"action": action, "log_prob": choice_log_prob(logits, action, self.action.choices), **memory}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        columns = super().random(obs, last)
        action = columns["action"]
        if self.action.kind == "box":
            return {**columns, "log_prob": np.full(len(action), -self.action.size * np.log(2.0), np.float32)}
        logits = np.zeros((len(action), self.action.size), np.float32)
        return {**columns, "log_prob": choice_log_prob(allowed(logits, obs), action, self.action.choices)}


def choice_log_prob(logits: Array, action: Array, choices: tuple[int, ...]) -> Array:
    """Return the log-probability `[E]` of actions, given the logits `[E, sum(choices)]` of k independent choices."""
    if len(choices) == 1:  # the usual case; this is four times as fast as the loop below
        log_probs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
        of_action: Array = log_probs[np.arange(len(logits)), action]
        return of_action
    log_prob = np.zeros(len(logits), np.float32)
    parts = np.split(logits, np.cumsum(choices)[:-1], -1)
    for one, a in zip(parts, action.reshape(len(logits), len(choices)).T, strict=True):
        log_probs = one - np.logaddexp.reduce(one, -1, keepdims=True)
        log_prob += np.take_along_axis(log_probs, a[:, None], -1)[:, 0]
    return log_prob


class Algorithm(NetworkAlgorithm):
    """Learns actor and critic in a trainer. Actor and critic share only the encoder."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config, self.action = config, spec.action
        parts: dict[str, Head | int] = {
            "actor": self.head(spec.action.size, last=0.01),
            "log_std": log_std_size(spec.action),  # all values start at 0
            "critic": self.head(1),
        }
        self.stream = stream = RewardStream.build(self.context, self.network, spec, self.seed + 3)
        if stream is not None:
            parts["reward_critic"] = self.head(1)
        policy, lrs = ("actor", "log_std"), {} if stream is None else {PART: stream.module.lr}
        built = self.build(parts, policy, config.lr, lrs, {} if stream is None else stream.modules)
        self.actor, self.critic, self.reward_critic = built["actor"], built["critic"], built.get("reward_critic")
        self.own_parts = () if stream is None else tuple(part for part in self.params.slices if part != PART)
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
            steps = [self._step(minibatch) for minibatch in rollout.minibatches(self.shuffle, size)]
            epoch = [step for step in steps if step]
            metrics += epoch
            skipped += len(steps) - len(epoch)
            if self.config.target_kl is not None and epoch:
                self.context.group.mean_(kl := _mean(epoch, "approx_kl"))
                if kl > self.config.target_kl:
                    break
        means = {name: _mean(metrics, name) for name in metrics[0]} if metrics else {}
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
        if config.normalize_advantage:
            advantage = rollout.normalized(advantage)
        rollout.rows["advantage"] = advantage
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
        config, num = self.config, len(rows["obs"])
        learns, share = self.encoder.is_trainable, rows.get("valid_weight")
        advantage = rows["advantage"] if share is None else share * rows["advantage"]

        # Actor: the clipped surrogate minus the entropy bonus.
        out, trace = self.actor.forward(rows["obs"])
        log_prob, entropy = self.log_prob(out[0], rows)
        log_ratio = log_prob - rows["log_prob"]
        ratio = log_ratio.exp()
        policy_loss, d_ratio = losses.clipped_surrogate(ratio, advantage, config.clip)
        d_entropy = torch.full_like(entropy, -config.entropy_coef / num)
        d_out = self._log_prob_backward(
            out[0], rows, d_ratio * ratio, d_entropy if share is None else share * d_entropy
        )
        d_obs = self.actor.backward(trace, d_out.unsqueeze(0), to_inputs=learns)

        # Critic: half the squared error. The value targets are the same in all epochs.
        value_loss, d_obs_critic = self._critic_gradients(self.critic, rows, "target", rows["drop"])
        if self.reward_critic is not None:
            reward_value_loss, d_obs_reward = self._critic_gradients(self.reward_critic, rows, "reward_target")
            value_loss = value_loss + reward_value_loss
            d_obs_critic = d_obs_critic + d_obs_reward if learns else d_obs_critic

        by_row = {
            "entropy": entropy,
            "approx_kl": ratio - 1.0 - log_ratio,
            "clip_fraction": ((ratio - 1.0).abs() > config.clip).float(),
        }
        means = {name: (x if share is None else share * x).mean() for name, x in by_row.items()}
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss.mean(), **means}
        return metrics, d_obs + d_obs_critic if learns else None

    def _critic_gradients(
        self, critic: FlatMLP, rows: Batch, target: str, drop: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Any]:  # Any: d loss/d features, or None if the encoder is not trained
        """Write the gradient of a critic, given the column with its value targets; return the loss of each row."""
        share = rows.get("valid_weight")
        value, trace = critic.forward(rows["obs"], drop)
        value_loss, d_value = half_square(value[0, :, 0] - rows[target])
        if share is not None:
            value_loss, d_value = share * value_loss, share * d_value
        d_value = (self.config.value_coef / len(rows["obs"])) * d_value.view(1, -1, 1)
        return value_loss, critic.backward(trace, d_value, to_inputs=self.encoder.is_trainable)

    def log_prob(self, out: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """Return the log-probability of the rows' actions and the entropy, `[M]` each, given the actor's output."""
        if self.action.kind == "box":
            return losses.gaussian(out, self.log_std, rows["action"])
        logits = losses.permitted(out, rows.get("action_mask"))
        if self.action.kind == "discrete":
            return losses.categorical(logits, rows["action"])
        return losses.multi_categorical(logits, rows["action"], self.action.choices)

    def _log_prob_backward(self, out: Tensor, rows: Batch, d_log_prob: Tensor, d_entropy: Tensor) -> Tensor:
        """Return d loss/d out, given d loss/d log_prob and d loss/d entropy `[M]`; write the gradient of log_std."""
        if self.action.kind == "box":
            d_out, d_log_std = losses.gaussian_backward(out, self.log_std, rows["action"], d_log_prob, d_entropy)
            torch.sum(d_log_std, 0, out=self.d_log_std)
            return d_out
        logits = losses.permitted(out, rows.get("action_mask"))
        if self.action.kind == "discrete":
            return losses.categorical_backward(logits, rows["action"], d_log_prob, d_entropy)
        return losses.multi_categorical_backward(logits, rows["action"], self.action.choices, d_log_prob, d_entropy)


def _mean(metrics: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([one[name] for one in metrics]).mean()
