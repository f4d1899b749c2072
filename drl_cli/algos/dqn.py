"""Deep Q-Network (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

One Q network, a target network that is a copy of it from time to time, epsilon-greedy exploration. With `double` the
online network chooses the next action and the target network rates it (Double DQN, van Hasselt et al. 2016, arXiv
1509.06461). The n-step return and the discount come with the batch, and so do importance weights, if any.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Batch, Update
from drl_cli.losses.value import double_q_target, half_square, huber, q_target
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import flatten, flatten_numpy
from drl_cli.networks.mlp import (
    MLP,
    Shapes,
    mlp_numpy,
    mlp_shapes,
    num_params,
    split,
)
from drl_cli.types import Array, Columns, EnvSpec, Last, Obs
from drl_cli.utils.group import Context
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, Fraction, Positive
from drl_cli.utils.schedules import linear
from drl_cli.utils.torch_ops import Adam, FlatParams, load_tensors, load_vector, save_tensors

ACTIONS = ("discrete",)
MODES = ("single", "sync", "async")
TABLES = ("uniform", "prioritized")
EXPLORATION = ("epsilon",)


@dataclass(frozen=True)
class Config(AlgoConfig):
    """Options of DQN."""

    lr: Positive
    double: bool
    loss: Literal["huber", "mse"]
    target_period: Count
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Count


def q_shapes(network: NetworkConfig, spec: EnvSpec) -> Shapes:
    """Observation -> the value of each action."""
    return mlp_shapes(spec.obs_size, network.hidden, spec.action.size)


class Policy(base.Policy):
    """Epsilon-greedy on the Q network in numpy."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        self.shapes = q_shapes(network, spec)
        self.activation = network.activation
        self.size = spec.action.size
        self.epsilon = config.epsilon_start
        self.rng = np.random.default_rng(seed)
        self.params: list[Array] = []

    def load(self, params: Array) -> None:
        self.params = split(params, self.shapes)

    def explore(self, values: Mapping[str, float]) -> None:
        self.epsilon = values["epsilon"]

    def act(self, obs: Obs, last: Last | None = None) -> Columns:
        is_random = self.rng.random(len(obs)) < self.epsilon
        return {"action": np.where(is_random, self.random(obs)["action"], self.greedy(obs))}

    def random(self, obs: Obs, last: Last | None = None) -> Columns:
        rows = len(obs)
        return {"action": self.rng.integers(self.size, size=rows)}

    def priorities(self, rows: Columns) -> Array:
        next_value = self._values(rows["next_obs"]).max(-1)
        q = np.take_along_axis(self._values(rows["obs"]), rows["action"][:, None], 1)[:, 0]
        error: Array = np.abs(rows["reward"] + rows["discount"] * next_value - q)
        return error

    def greedy(self, obs: Obs, last: Last | None = None) -> Array:
        action: Array = self._values(obs).argmax(-1)
        return action

    def _values(self, obs: Obs) -> Array:
        return mlp_numpy(self.params, flatten_numpy(obs), self.activation)


class Algorithm:
    """The learner."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.config = config
        shapes = q_shapes(network, spec)
        params = FlatParams(context.device, online=num_params(shapes))
        self.online = MLP(shapes, network.activation, params["online"], products=context.products)
        self.online.init(network.init, torch.Generator().manual_seed(seed))
        self.target = self.online.copy()
        self.optimizer = Adam(params, {"online": config.lr}, context)
        self.updates = torch.zeros((), dtype=torch.int64)
        self.gradients = context.compiled(self._gradients)

    def update(self, batch: Batch) -> Update:
        with torch.no_grad():
            metrics, error_size = self.gradients(batch)
            if not self.optimizer.step(metrics["q_loss"]):
                return Update({}, error_size, steps=0, skipped=1)
            self.updates += 1
            if int(self.updates) % self.config.target_period == 0:
                self.target.flat.copy_(self.online.flat)
        return Update(metrics, error_size)

    def _gradients(self, batch: Batch) -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
        """Write the gradient of the loss; returns metrics and |TD error| `[B]`."""
        obs, next_obs = flatten(batch["obs"]), flatten(batch["next_obs"])
        action = batch["action"].unsqueeze(-1)

        next_q = self.target.forward(next_obs)[0][0]
        if self.config.double:
            next_online = self.online.forward(next_obs)[0][0]
            target = double_q_target(batch["reward"], batch["discount"], next_q, next_online)
        else:
            target = q_target(batch["reward"], batch["discount"], next_q)

        values, trace = self.online.forward(obs)
        q = values[0].gather(-1, action).squeeze(-1)
        error = q - target
        loss, slope = (huber if self.config.loss == "huber" else half_square)(error)
        if "weight" in batch:
            loss, slope = batch["weight"] * loss, batch["weight"] * slope
        d_q = torch.zeros_like(values[0]).scatter_(-1, action, (slope / len(slope)).unsqueeze(-1))
        self.online.backward(trace, d_q.unsqueeze(0))
        return {"q_loss": loss.mean(), "q_mean": q.mean()}, error.abs()

    def policy_params(self) -> Array:
        return self.online.params()

    def load_policy(self, params: Array) -> None:
        for network in (self.online, self.target):
            load_vector([network.flat], params)

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        return {"epsilon": linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)}

    def state(self) -> "dict[str, torch.Tensor]":
        return save_tensors(self._tensors())

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        load_tensors(self._tensors(), state)

    def _tensors(self) -> "dict[str, torch.Tensor]":
        tensors = {"online": self.online.flat, "target": self.target.flat, "updates": self.updates}
        return tensors | {f"optimizer.{key}": tensor for key, tensor in self.optimizer.state().items()}
