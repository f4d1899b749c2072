"""A fake of EnvPool 1.2 with its next-step autoreset, subsets by id and mixed-up last step.

`install(monkeypatch)` replaces EnvPool. FakeCounter-v0 counts like the probe Counter and is also registered with
Gymnasium with a time limit, and FakePlain-v0 without; only EnvPool has FakeOnly-v0.
"""

import sys
import types
from collections import namedtuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.probes import Counter

IDS = [f"Fake{name}-v0" for name in ("Counter", "CounterLong", "Plain", "Choices", "Game", "Only")]
BASE = {"num_envs": 1, "seed": 0, "env_seed": [], "num_threads": 0, "max_num_players": 1, "max_episode_steps": 1000}
OBS, ACTION = Box(-1.0, 2**24, (3,), np.float32), Box(-2.0, 4.0, (1,), np.float32)


class Falling(Counter):
    """Gymnasium's environment: all episodes terminate, and there are no faults."""

    def __init__(self, base_length=3, fault="", fault_at=4):
        super().__init__(base_length)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, False, info


gymnasium.register("FakeCounter-v0", Falling, max_episode_steps=6)
gymnasium.register("FakeCounterLong-v0", Falling, kwargs={"base_length": 9}, max_episode_steps=6)
for _name in ("Plain", "Choices", "Game"):
    gymnasium.register(f"Fake{_name}-v0", Falling)


def install(monkeypatch):
    module = types.ModuleType("envpool")
    module.list_all_envs, module.make_spec, module.make_gymnasium = lambda: list(IDS), make_spec, make_pool
    monkeypatch.setitem(sys.modules, "envpool", module)


def make_spec(id, **kwargs):
    options = {"base_length": 9 if "Long" in id else 3, "fault": "", "fault_at": 4}
    options |= BASE | {"max_num_players": 2 if "Game" in id else 1}
    if not isinstance(kwargs.get("base_length", 0), int):
        raise TypeError("incompatible constructor arguments")
    values = options | kwargs
    action = Discrete(3) if "Choices" in id else ACTION
    config = namedtuple("Config", options)(**values)  # a TypeError for what it does not have, as EnvPool's
    return types.SimpleNamespace(config=config, observation_space=OBS, action_space=action)


def make_pool(id, **kwargs):
    return FakePool(make_spec(id, **kwargs).config)


class FakePool:
    """Observations are [seed, episode, step], the reward is the step's number, episode i has 3 + i mod 5 steps.

    `fault` happens in environment 1: "nan_obs", "inf_reward" or "raise" in its step `fault_at`, or "nan_reset" in the
    next reset. `reset_rows` counts the steps that EnvPool used for resets.
    """

    def __init__(self, config):
        self.observation_space, self.action_space = OBS, ACTION
        self.config, self.seeds = config, np.array(config.seed) % 2**20
        self.episode, self.count, self.life = (np.zeros(config.num_envs, np.int64) for _ in range(3))
        self.episode -= 1
        self.is_over = np.ones(config.num_envs, np.bool_)
        self.is_faulty, self.reset_rows, self.is_closed = bool(config.fault), 0, False

    def reset(self, env_id=None):
        ids = np.arange(self.config.num_envs, dtype=np.int32) if env_id is None else env_id
        assert ids.dtype == np.int32
        self._begin(ids)
        obs = self._obs(ids)
        if self.is_faulty and self.config.fault == "nan_reset" and 1 in ids and self.life[1] >= self.config.fault_at:
            self.is_faulty = False
            obs[ids == 1] = np.nan
        return obs, {"elapsed_step": self.count[ids]}

    def step(self, actions, env_id=None):
        ids = np.arange(self.config.num_envs, dtype=np.int32) if env_id is None else env_id
        assert isinstance(actions, np.ndarray)
        assert len(actions) == len(ids)
        assert all(ACTION.contains(action) for action in actions)
        first, rest = ids[self.is_over[ids]], ids[~self.is_over[ids]]
        self.reset_rows += len(first)
        self._begin(first)
        self.count[rest] += 1
        self.life[rest] += 1
        fell = self.count >= self.config.base_length + self.episode % 5
        cut = self.count >= self.config.max_episode_steps
        self.is_over[rest] = (fell | cut)[rest]
        obs, reward = self._obs(ids), self.count[ids].astype(np.float32)
        if self.is_faulty and self.life[1] == self.config.fault_at and self.config.fault != "nan_reset":
            self.is_faulty = False
            if self.config.fault == "raise":
                raise RuntimeError("the simulator is gone")
            obs[1] = np.nan if self.config.fault == "nan_obs" else obs[1]
            reward[1] = np.inf if self.config.fault == "inf_reward" else reward[1]
        trunc = (fell | cut)[ids] & cut[ids]
        return obs, reward, fell[ids] & ~trunc, trunc, {"elapsed_step": self.count[ids]}

    def close(self):
        self.is_closed = True

    def _begin(self, ids):
        self.episode[ids] += 1
        self.count[ids], self.is_over[ids] = 0, False

    def _obs(self, ids):
        return np.stack([self.seeds[ids], self.episode[ids], self.count[ids]], 1).astype(np.float32)
