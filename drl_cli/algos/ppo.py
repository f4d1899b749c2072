"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347), the clipped variant, for any action space.

Each batch is a whole rollout, learned from in several epochs of minibatches, with generalised advantage estimates
(Schulman et al. 2015, arXiv 1506.02438). The probability ratio is taken to the policy that acted, whose
log-probability comes with the batch: that corrects for a rollout that is a few versions old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.algos.policy import NetworkPolicy, allowed, sample_choices
from drl_cli.algos.rollout import Rollout
from drl_cli.losses.policy import (
    LOG_2PI,
    categorical,
    categorical_backward,
    clipped_surrogate,
    gaussian,
    gaussian_backward,
    multi_categorical,
    multi_categorical_backward,
    permitted,
)
from drl_cli.losses.returns import gae
from drl_cli.losses.value import half_square
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.optimizer import NotFinite
from drl_cli.types import ActionSpec, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """Options of PPO."""

    n_step: Literal[1]
    gae_lambda: Fraction
    clip: Positive
    epochs: Count
    minibatch_size: Count
    seq_len: Count
    entropy_coef: NonNegative
    value_coef: Positive
    normalize_advantage: bool
    target_kl: Positive | None


def log_std_size(action: ActionSpec) -> int:
    """Parameters that the policy has beside its network: a box action's log standard deviations, for all states."""
    return action.size if action.kind == "box" else 0


class Policy(NetworkPolicy):
    """The actor: a Gaussian, whose samples the environment clips to [-1, 1], or a softmax over each choice.

    Its head gives the mean of each action dimension, or the logit of each choice.
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
            log_prob = (-0.5 * noise**2 - self.log_std - np.float32(0.5 * LOG_2PI)).sum(-1)
            return {"action": out + np.exp(self.log_std) * noise, "log_prob": log_prob, **memory}
        logits = allowed(out, obs)
        action = sample_choices(logits, self.action.choices, self.rng)
        return {"action": action, "log_prob": choice_log_prob(logits, action, self.action.choices), **memory}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        columns = super().random(obs, last)
        action = columns["action"]
        if self.action.kind == "box":
            return {**columns, "log_prob": np.full(len(action), -self.action.size * np.log(2.0), np.float32)}
        none = np.zeros((len(action), self.action.size), np.float32)
        return {**columns, "log_prob": choice_log_prob(allowed(none, obs), action, self.action.choices)}


def choice_log_prob(logits: Array, action: Array, choices: tuple[int, ...]) -> Array:
    """Log-probability `[E]` of actions under softmax(logits) of each choice, logits `[E, sum(choices)]`."""
    if len(choices) == 1:  # what most environments have, and four times as fast
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
    """The learner. Actor and critic share the encoder of images or sequences, and nothing else."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config, self.action = config, spec.action
        parts: dict[str, Head | int] = {
            "actor": self.head(spec.action.size, last=0.01),
            "log_std": log_std_size(spec.action),  # 0 at first
            "critic": self.head(1),
        }
        built = self.build(parts, policy=("actor", "log_std"), lr=config.lr)
        self.actor, self.critic = built["actor"], built["critic"]
        self.log_std, self.d_log_std = self.params["log_std"].flat, self.params["log_std"].grad
        self.shuffle = self.params.generator("shuffle", self.seed + 1, on_cpu=True)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rollout = self._rollout(batch)
        metrics: list[dict[str, Tensor]] = []
        skipped = 0
        for _ in range(self.config.epochs):
            steps = [self._step(minibatch) for minibatch in rollout.minibatches(self.shuffle)]
            epoch = [step for step in steps if step]
            metrics += epoch
            skipped += len(steps) - len(epoch)
            if self.config.target_kl is not None and epoch:
                self.context.group.mean_(kl := _mean(epoch, "approx_kl"))
                if kl > self.config.target_kl:
                    break
        means = {name: _mean(metrics, name) for name in metrics[0]} if metrics else {}
        return Update(means, steps=len(metrics), skipped=skipped)

    def _rollout(self, batch: Batch) -> Rollout:
        """What is learned from: the batch's rows with their advantages and returns."""
        config, group = self.config, self.context.group
        rollout = Rollout(batch, self.encoder, config, group)
        value, next_value = (self.critic.forward(x)[0][0, :, 0] for x in rollout.features())
        columns = [batch["reward"], batch["discount"], value, next_value, batch["cut"]]
        reward, discount, now, then, cut = (column.cpu().numpy() for column in columns)
        advantage = torch.from_numpy(gae(reward, discount, now, then, cut, config.gae_lambda)).to(value.device)
        rollout.rows["target"] = advantage + value
        if config.normalize_advantage:
            group.mean_(mean := advantage.mean())
            group.mean_(variance := (advantage - mean).square().mean())
            advantage = (advantage - mean) / (variance.sqrt() + 1e-8)
        rollout.rows["advantage"] = advantage
        return rollout

    def _step(self, minibatch: dict[str, Any]) -> dict[str, Tensor]:  # Any: as in Batch
        """One gradient update from a minibatch `[M, ...]`; no metrics where it was left out."""
        view, rows = self.see(minibatch) if self.encoder.is_trainable else (None, minibatch)
        rows["drop"] = self.masks(self.critic, rows["target"], is_mine=rows.pop("is_mine", None))
        metrics, d_obs = self.gradients(rows)
        try:
            self.step(view, d_obs, metrics["policy_loss"], metrics["value_loss"])
        except NotFinite:
            return {}
        return metrics

    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor | None]:
        """Write the gradients of both losses; returns metrics and, where the encoder learns, their gradient for obs."""
        config, num = self.config, len(rows["obs"])
        learns, share = self.encoder.is_trainable, rows.get("valid_weight")
        advantage = rows["advantage"] if share is None else share * rows["advantage"]

        # Actor: the clipped surrogate, less the entropy.
        out, trace = self.actor.forward(rows["obs"])
        log_prob, entropy = self._log_prob(out[0], rows)
        log_ratio = log_prob - rows["log_prob"]
        ratio = log_ratio.exp()
        policy_loss, d_ratio = clipped_surrogate(ratio, advantage, config.clip)
        d_entropy = torch.full_like(entropy, -config.entropy_coef / num)
        d_out = self._log_prob_backward(
            out[0], rows, d_ratio * ratio, d_entropy if share is None else share * d_entropy
        )
        d_obs = self.actor.backward(trace, d_out.unsqueeze(0), to_inputs=learns)

        # Critic: half the squared error to the returns that the rollout began with.
        value, value_trace = self.critic.forward(rows["obs"], rows["drop"])
        value_loss, d_value = half_square(value[0, :, 0] - rows["target"])
        if share is not None:
            value_loss, d_value = share * value_loss, share * d_value
        d_value = (config.value_coef / num) * d_value.view(1, -1, 1)
        d_obs_too = self.critic.backward(value_trace, d_value, to_inputs=learns)

        by_row = {
            "entropy": entropy,
            "approx_kl": ratio - 1.0 - log_ratio,
            "clip_fraction": ((ratio - 1.0).abs() > config.clip).float(),
        }
        means = {name: (x if share is None else share * x).mean() for name, x in by_row.items()}
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss.mean(), **means}
        return metrics, d_obs + d_obs_too if learns else None

    def _log_prob(self, out: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability of the rows' actions and entropy, `[M]` each, by the actor's output."""
        if self.action.kind == "box":
            return gaussian(out, self.log_std, rows["action"])
        logits = permitted(out, rows.get("action_mask"))
        if self.action.kind == "discrete":
            return categorical(logits, rows["action"])
        return multi_categorical(logits, rows["action"], self.action.choices)

    def _log_prob_backward(self, out: Tensor, rows: Batch, d_log_prob: Tensor, d_entropy: Tensor) -> Tensor:
        """Gradient of `_log_prob` with respect to the actor's output; that of log_std is written."""
        if self.action.kind == "box":
            d_out, d_log_std = gaussian_backward(out, self.log_std, rows["action"], d_log_prob, d_entropy)
            torch.sum(d_log_std, 0, out=self.d_log_std)
            return d_out
        logits = permitted(out, rows.get("action_mask"))
        if self.action.kind == "discrete":
            return categorical_backward(logits, rows["action"], d_log_prob, d_entropy)
        return multi_categorical_backward(logits, rows["action"], self.action.choices, d_log_prob, d_entropy)


def _mean(metrics: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([one[name] for one in metrics]).mean()
