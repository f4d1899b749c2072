"""Deep Q-Network (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

One Q network, a target network that is a copy of it from time to time, epsilon-greedy exploration. With `double` the
online network chooses the next action and the target network rates it (Double DQN, van Hasselt et al. 2016, arXiv
1509.06461). The n-step return and the discount come with the batch, and so do importance weights, if any.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import LearnerConfig, NetworkAlgorithm
from drl_cli.algos.policy import NetworkPolicy, allowed
from drl_cli.losses.policy import permitted
from drl_cli.losses.value import double_q_target, half_square, huber, q_target
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.types import Array, Columns, EnvSpec, Last, Obs, tree
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, Fraction
from drl_cli.utils.schedules import linear

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")
EXPLORATION = ("epsilon",)


@dataclass(frozen=True)
class Config(LearnerConfig):
    """Options of DQN."""

    double: bool
    loss: Literal["huber", "mse"]
    target_period: Count
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Count


class Policy(NetworkPolicy):
    """Epsilon-greedy on the Q network."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.epsilon = config.epsilon_start

    def explore(self, values: Mapping[str, float]) -> None:
        self.epsilon = values["epsilon"]

    def act(self, obs: Obs, last: Last | None = None) -> Columns:
        values, memory = self.forward(obs, last)
        is_random = self.rng.random(len(values)) < self.epsilon
        return {"action": np.where(is_random, self.draw(obs), allowed(values, obs).argmax(-1)), **memory}

    def priorities(self, rows: Columns) -> Array:
        next_value = allowed(self.forward(next_obs := tree(rows, "next_obs"), None)[0], next_obs).max(-1)
        q = np.take_along_axis(self.forward(tree(rows, "obs"), None)[0], rows["action"][:, None], 1)[:, 0]
        error: Array = np.abs(rows["reward"] + rows["discount"] * next_value - q)
        return error


class Algorithm(NetworkAlgorithm):
    """The learner."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config = config
        head = self.head(spec.action.size)
        self.online = self.build({"online": head}, policy=("online",), lr=config.lr)["online"]
        self.target = self.target_of("online", self.online)

    def update(self, batch: Batch, counts: Counts) -> Update:
        view, rows = self.see(batch, self.online)
        rows["next_mask"], rows["target_next_obs"] = action_mask(rows["next_obs"]), self.see_next(batch, view)
        rows["next_obs"] = view.next_obs if self.config.double else None
        metrics, error_size, d_obs = self.gradients(rows)
        self.step(view, d_obs, metrics["q_loss"])
        if (counts.opt_steps + 1) % self.config.target_period == 0:
            self.params.follow(1.0)
        return Update(metrics, self.by_step(error_size, batch))

    def gradients(self, rows: Batch) -> "tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None]":
        """Write the gradient of the loss; returns metrics, |TD error| `[N]` and d loss/d obs `[N, F]` (or None)."""
        action, target = rows["action"].unsqueeze(-1), self.targets(rows)
        values, trace = self.online.forward(rows["obs"], rows["drop"])
        q = values[0].gather(-1, action).squeeze(-1)
        error = q - target
        loss, slope = (huber if self.config.loss == "huber" else half_square)(error)
        if "weight" in rows:
            loss, slope = rows["weight"] * loss, rows["weight"] * slope
        d_q = torch.zeros_like(values[0]).scatter_(-1, action, (slope / len(slope)).unsqueeze(-1))
        d_obs = self.online.backward(trace, d_q.unsqueeze(0), to_inputs=not self.encoder.is_plain)
        return {"q_loss": loss.mean(), "q_mean": q.mean()}, error.abs(), d_obs

    def targets(self, rows: Batch) -> "torch.Tensor":
        """What the value of each row's action should be `[N]`."""
        next_q = permitted(self.target.forward(rows["target_next_obs"])[0][0], rows["next_mask"])
        if not self.config.double:
            return q_target(rows["reward"], rows["discount"], next_q)
        next_online = permitted(self.online.forward(rows["next_obs"])[0][0], rows["next_mask"])
        return double_q_target(rows["reward"], rows["discount"], next_q, next_online)

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        return {"epsilon": linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)}
