"""An algorithm for tests that learns nothing and checks all parts of Tree-v0's observations.

Priorities are 1 + the number of the step. The metric `errors` counts parts of a batch that do not fit together.
"""

from dataclasses import dataclass

import numpy as np
import torch

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Update
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params

ACTIONS = ("box", "discrete", "multidiscrete")
MODES = ("single", "sync", "async")
TABLES = ("uniform", "prioritized", "sequences", "fifo-once")
EXPLORATION = ()
PATHS = ["camera", "inner.0", "inner.1", "inner.2", "who"]


@dataclass(frozen=True)
class Config(AlgoConfig):
    """The config has no further options."""


class Policy(base.Policy):
    """Acts at random; greedy actions are 0."""

    def __init__(self, config, network, spec, seed):
        self.action, self.rng = spec.action, np.random.default_rng(seed)

    def load(self, params):
        assert params.shape == (1,)

    def act(self, obs, last=None):
        check(obs)
        assert last.action.shape == (len(obs["who"]), *self.action.column.shape)
        return self.random(obs, last)

    def random(self, obs, last=None):
        shape = (len(obs["who"]), *self.action.column.shape)
        if self.action.kind == "box":
            return {"action": self.rng.uniform(-1, 1, shape).astype(np.float32)}
        return {"action": self.rng.integers(self.action.choices, size=shape)}

    def priorities(self, rows):
        check(rows["obs"])
        check(rows["next_obs"])
        return rows["obs"]["inner.0"] + np.float32(1)

    def greedy(self, obs, last=None):
        check(obs)
        return np.zeros((len(obs["who"]), *self.action.column.shape), self.action.column.dtype)


def check(obs):
    assert sorted(obs) == PATHS
    np.testing.assert_array_equal(obs["who"][..., 2], obs["inner.0"])
    np.testing.assert_array_equal(obs["camera"][..., 8 // 4, 0, 1], obs["inner.0"])  # the third number of its stamp


class Algorithm(base.Algorithm):
    """Counts its updates in its only parameter."""

    policy_parts = ("updates",)

    def __init__(self, config, network, spec, seed, context):
        self.params = Params(context, updates=1)
        self.optimizer, self.errors = Optimizer(self.params, {"updates": 1.0}, context), []

    def update(self, batch, counts):
        error = torch.zeros(())
        for name in ("obs", "next_obs"):
            obs = batch[name]
            assert sorted(obs) == PATHS
            assert not any(key.startswith(f"{name}.") for key in batch)
            count = obs["inner.0"].float()
            error += (obs["inner.1"][..., 2] - count).abs().max() + (obs["camera"][..., 2, 0, 1] - count).abs().max()
            error += (obs["inner.2"].float() @ torch.tensor([1.0, 2.0, 4.0, 8.0]) - count).abs().max()
        self.params.grad.fill_(-1.0)
        self.optimizer.step(error)
        self.errors.append(float(error))
        priorities = 1.0 + batch["obs"]["inner.0"].float()  # of a sequence those of the second half
        return Update(
            {"error": error}, priorities if priorities.ndim == 1 else priorities[:, priorities.shape[1] // 2 :]
        )
