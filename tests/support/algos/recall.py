"""A recurrent algorithm for tests, which unrolls sequences from their stored state and compares the results.

The state is a known function of the observations of the probe Counter since the episode began; nothing is learned.
The first half of a sequence is its burn-in.
"""

from dataclasses import dataclass

import numpy as np
import torch

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Update
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import Column

ACTIONS = ("box",)
MODES = ("single", "sync", "async")
TABLES = ("sequences",)
EXPLORATION = ()


@dataclass(frozen=True)
class Config(AlgoConfig):
    """The config has no further options."""


class Policy(base.Policy):
    """Keeps the state before the observation (`state`) and after it (`seen`)."""

    @staticmethod
    def extra_columns(config, network, spec):
        return {"state": Column((2,), "float32"), "seen": Column((2,), "float32")}

    def __init__(self, config, network, spec, seed):
        self.size, self.rng = spec.action.size, np.random.default_rng(seed)
        self.memory = np.zeros((0, 2), np.float32)

    def load(self, params):
        assert params.shape == (1,)

    def act(self, obs, last=None):
        if len(self.memory) != len(obs):
            self.memory = np.zeros((len(obs), 2), np.float32)
        before = np.where(last.begins[:, None], np.float32(0), self.memory)
        self.memory = before / 2 + obs[:, 1:]
        action = self.rng.uniform(-1, 1, (len(obs), self.size)).astype(np.float32)
        return {"action": action, "state": before, "seen": self.memory.copy()}

    def random(self, obs, last=None):
        raise NotImplementedError

    def priorities(self, rows):
        return np.where(rows["valid"], rows["reward"], np.nan)[:, rows["valid"].shape[1] // 2 :]

    def greedy(self, obs, last=None):
        return np.zeros((len(obs), self.size), np.float32)

    def state(self):
        return {**super().state(), "memory": self.memory.copy()}

    def load_state(self, state):
        super().load_state(state)
        self.memory = state["memory"].copy()


class Algorithm(base.Algorithm):
    """Priorities are rewards of learned steps, NaN for padding; `errors` is the largest difference of states."""

    policy_parts = ("updates",)

    def __init__(self, config, network, spec, seed, context):
        self.params = Params(context, updates=1)
        self.optimizer, self.errors = Optimizer(self.params, {"updates": 1.0}, context), []

    def update(self, batch, counts):
        mask, state, error = batch["valid"].unsqueeze(-1), batch["state"], torch.zeros(())
        for t in range(mask.shape[1]):
            state = torch.where(mask[:, t], state / 2 + batch["obs"][:, t, 1:], state)
            error = torch.maximum(error, (mask[:, t] * (state - batch["seen"][:, t])).abs().max())
        self.params.grad.fill_(-1.0)
        self.optimizer.step(error)
        self.errors.append(float(error))
        priorities = torch.where(batch["valid"], batch["reward"], torch.nan)[:, mask.shape[1] // 2 :]
        return Update({"state_error": error}, priorities)
