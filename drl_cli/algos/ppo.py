"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347), the clipped variant, for any action space.

Each batch is a whole rollout, learned from in several epochs of minibatches, with generalised advantage estimates
(Schulman et al. 2015, arXiv 1506.02438). The probability ratio is taken to the policy that acted, whose
log-probability comes with the batch: that corrects for a rollout that is a few versions old.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Batch, Update
from drl_cli.losses.policy import (
    LOG_2PI,
    categorical,
    categorical_backward,
    clipped_surrogate,
    gaussian,
    gaussian_backward,
)
from drl_cli.losses.returns import gae
from drl_cli.losses.value import half_square
from drl_cli.networks.mlp import (
    MLP,
    NetworkConfig,
    Shapes,
    flatten,
    flatten_numpy,
    mlp_numpy,
    mlp_shapes,
    num_params,
    split,
)
from drl_cli.types import Array, Column, Columns, EnvSpec, Last, Obs, Schema
from drl_cli.utils.group import Context
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive
from drl_cli.utils.torch_ops import Adam, FlatParams, load_tensors, load_vector, save_tensors

ACTIONS = ("box", "discrete")
MODES = ("single", "sync", "async")
TABLES = ("fifo-once",)
EXPLORATION = ()


@dataclass(frozen=True, kw_only=True)
class Config(AlgoConfig):
    """Options of PPO."""

    n_step: Literal[1]
    lr: Positive
    gae_lambda: Fraction
    clip: Positive
    epochs: Count
    minibatch_size: Count
    entropy_coef: NonNegative
    value_coef: Positive
    max_grad_norm: Positive
    normalize_advantage: bool
    target_kl: Positive | None


def actor_shapes(network: NetworkConfig, spec: EnvSpec) -> Shapes:
    """Observation -> mean of each action dimension (box), logit of each choice (discrete)."""
    return mlp_shapes(spec.obs_size, network.hidden, spec.action.size)


def log_std_size(spec: EnvSpec) -> int:
    """Parameters that the policy has beside its network: a box action's log standard deviations, for all states."""
    return spec.action.size if spec.action.kind == "box" else 0


class Policy(base.Policy):
    """The actor in numpy: a Gaussian, whose samples the environment clips to [-1, 1], or a softmax over choices."""

    @staticmethod
    def extra_columns(config: Config, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {"log_prob": Column((), "float32")}

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        self.shapes = [*actor_shapes(network, spec), (log_std_size(spec),)]
        self.activation = network.activation
        self.is_box, self.size = spec.action.kind == "box", spec.action.size
        self.rng = np.random.default_rng(seed)
        self.params: list[Array] = []
        self.log_std = np.zeros(0, np.float32)

    def load(self, params: Array) -> None:
        *self.params, self.log_std = split(params, self.shapes)

    def act(self, obs: Obs, last: Last | None = None) -> Columns:
        out = self._forward(obs)
        if self.is_box:
            noise = self.rng.standard_normal(out.shape, dtype=np.float32)
            log_prob = (-0.5 * noise**2 - self.log_std - np.float32(0.5 * LOG_2PI)).sum(-1)
            return {"action": out + np.exp(self.log_std) * noise, "log_prob": log_prob}
        # The largest logit plus Gumbel noise falls on each choice with its softmax probability.
        action = (out + self.rng.gumbel(size=out.shape)).argmax(-1)
        log_probs = out - np.logaddexp.reduce(out, -1, keepdims=True)
        return {"action": action, "log_prob": np.take_along_axis(log_probs, action[:, None], -1)[:, 0]}

    def random(self, obs: Obs, last: Last | None = None) -> Columns:
        rows = len(obs)
        log_prob = -self.size * np.log(2.0) if self.is_box else -np.log(self.size)
        action = (
            self.rng.uniform(-1.0, 1.0, (rows, self.size)).astype(np.float32)
            if self.is_box
            else self.rng.integers(self.size, size=rows)
        )
        return {"action": action, "log_prob": np.full(rows, log_prob, np.float32)}

    def greedy(self, obs: Obs, last: Last | None = None) -> Array:
        out = self._forward(obs)
        action: Array = np.clip(out, -1.0, 1.0) if self.is_box else out.argmax(-1)
        return action

    def _forward(self, obs: Obs) -> Array:
        return mlp_numpy(self.params, flatten_numpy(obs), self.activation)


class Algorithm:
    """The learner."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.config, self.group = config, context.group
        self.is_box = spec.action.kind == "box"
        self.minibatch_size = -(-config.minibatch_size // context.group.size)
        init = torch.Generator().manual_seed(seed)
        self.shuffle = torch.Generator().manual_seed(seed + 1)
        actor, critic = actor_shapes(network, spec), mlp_shapes(spec.obs_size, network.hidden, 1)
        sizes = {"actor": num_params(actor), "log_std": log_std_size(spec), "critic": num_params(critic)}
        params = FlatParams(context.device, **sizes)
        self.actor = MLP(actor, network.activation, params["actor"], products=context.products)
        self.critic = MLP(critic, network.activation, params["critic"], products=context.products)
        self.log_std, self.d_log_std = params["log_std"].flat, params["log_std"].grad  # 0 at first
        self.actor.init(network.init, init, last=0.01)
        self.critic.init(network.init, init)
        self.optimizer = Adam(params, dict.fromkeys(sizes, config.lr), context, max_norm=config.max_grad_norm)
        self.gradients = context.compiled(self._gradients)

    def update(self, batch: Batch) -> Update:
        with torch.no_grad():
            return self._update(batch)

    def _update(self, batch: Batch) -> Update:
        config, obs = self.config, flatten(batch["obs"])
        value, advantage = self._advantage(batch, obs)
        rows = {"obs": obs, "action": batch["action"], "log_prob": batch["log_prob"], "target": advantage + value}
        if config.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        rows["advantage"] = advantage

        metrics: list[dict[str, torch.Tensor]] = []
        skipped = 0
        for _ in range(config.epochs):
            order = torch.randperm(len(obs), generator=self.shuffle).to(obs.device)
            parts = {name: torch.split(column[order], self.minibatch_size) for name, column in rows.items()}
            steps = [self._step(dict(zip(parts, part, strict=True))) for part in zip(*parts.values(), strict=True)]
            epoch = [step for step in steps if step]
            metrics += epoch
            skipped += len(steps) - len(epoch)
            if config.target_kl is not None and epoch:
                self.group.mean_(kl := _mean(epoch, "approx_kl"))
                if kl > config.target_kl:
                    break
        means = {name: _mean(metrics, name) for name in metrics[0]} if metrics else {}
        return Update(means, steps=len(metrics), skipped=skipped)

    def _advantage(self, batch: Batch, obs: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        """Values and advantages `[B]` with the present critic."""
        value, next_value = (self.critic.forward(x)[0][0, :, 0] for x in (obs, flatten(batch["next_obs"])))
        columns = [batch["reward"], batch["discount"], value, next_value, batch["cut"]]
        reward, discount, now, then, cut = (column.cpu().numpy() for column in columns)
        advantage = gae(reward, discount, now, then, cut, self.config.gae_lambda)
        return value, torch.from_numpy(advantage).to(obs.device)

    def _step(self, rows: Batch) -> "dict[str, torch.Tensor]":
        """One gradient update from a minibatch `[M, ...]`; no metrics where it was left out."""
        metrics = self.gradients(rows)
        return metrics if self.optimizer.step(metrics["policy_loss"], metrics["value_loss"]) else {}

    def _gradients(self, rows: Batch) -> "dict[str, torch.Tensor]":
        """Write the gradients of both losses; returns metrics."""
        config, action, size = self.config, rows["action"], len(rows["obs"])

        # Actor: the clipped surrogate, less the entropy.
        out, trace = self.actor.forward(rows["obs"])
        log_prob, entropy = gaussian(out[0], self.log_std, action) if self.is_box else categorical(out[0], action)
        log_ratio = log_prob - rows["log_prob"]
        ratio = log_ratio.exp()
        policy_loss, d_ratio = clipped_surrogate(ratio, rows["advantage"], config.clip)
        gradients = d_ratio * ratio, torch.full_like(entropy, -config.entropy_coef / size)
        if self.is_box:
            d_out, d_log_std = gaussian_backward(out[0], self.log_std, action, *gradients)
            torch.sum(d_log_std, 0, out=self.d_log_std)
        else:
            d_out = categorical_backward(out[0], action, *gradients)
        self.actor.backward(trace, d_out.unsqueeze(0))

        # Critic: half the squared error to the returns that the rollout began with.
        value, value_trace = self.critic.forward(rows["obs"])
        value_loss, d_value = half_square(value[0, :, 0] - rows["target"])
        self.critic.backward(value_trace, (config.value_coef / size) * d_value.view(1, -1, 1))

        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss.mean(),
            "entropy": entropy.mean(),
            "approx_kl": (ratio - 1.0 - log_ratio).mean(),
            "clip_fraction": ((ratio - 1.0).abs() > config.clip).float().mean(),
        }

    def policy_params(self) -> Array:
        return np.concatenate([self.actor.params(), self.log_std.cpu().numpy()])

    def load_policy(self, params: Array) -> None:
        load_vector([self.actor.flat, self.log_std], params)

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        return {}

    def state(self) -> "dict[str, torch.Tensor]":
        return save_tensors(self._tensors() | {"shuffle": self.shuffle.get_state()})

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        shuffle = self.shuffle.get_state()
        load_tensors(self._tensors() | {"shuffle": shuffle}, state)
        self.shuffle.set_state(shuffle)

    def _tensors(self) -> "dict[str, torch.Tensor]":
        tensors = {"actor": self.actor.flat, "log_std": self.log_std, "critic": self.critic.flat}
        return tensors | {f"optimizer.{key}": tensor for key, tensor in self.optimizer.state().items()}


def _mean(metrics: "list[dict[str, torch.Tensor]]", name: str) -> "torch.Tensor":
    return torch.stack([one[name] for one in metrics]).mean()
