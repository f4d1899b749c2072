"""E environments stepped together: our own loop, so that no autoreset row exists and truncation is never lost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import Env
from drl_cli.types import Array, EnvSpec, Episode


@dataclass(frozen=True)
class Step:
    """One step of all environments, `[E, ...]`; `next_obs` is the true final observation where an episode ended."""

    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array


class EnvBatch:
    """Steps E environments and resets those whose episode ended; `obs` `[E, ...]` is what to act on next."""

    def __init__(self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int]) -> None:
        self.envs = [Env(config) for _ in seeds]
        self.obs = np.empty((len(seeds), *spec.obs.shape), spec.obs.dtype)
        self.episodes: list[Episode] = []
        self._returns = [0.0] * len(seeds)
        self._lengths = [0] * len(seeds)
        for i, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            self.obs[i] = env.reset(seed)

    def step(self, actions: Array) -> Step:
        """Step every environment; the arrays returned are fresh, `self.obs` is updated in place."""
        size = len(self.envs)
        step = Step(
            np.empty(size, np.float32),
            np.empty_like(self.obs),
            np.empty(size, np.bool_),
            np.empty(size, np.bool_),
        )
        for i, env in enumerate(self.envs):
            obs, reward, terminated, truncated = env.step(actions[i])
            step.next_obs[i] = obs
            step.reward[i], step.terminated[i], step.truncated[i] = reward, terminated, truncated
            self._returns[i] += reward
            self._lengths[i] += 1
            if terminated or truncated:
                self.episodes.append(Episode(i, self._returns[i], self._lengths[i]))
                self._returns[i], self._lengths[i] = 0.0, 0
                self.obs[i] = env.reset()
            else:
                self.obs[i] = step.next_obs[i]
        return step

    def take_episodes(self) -> tuple[Episode, ...]:
        """Episodes finished since the last call."""
        episodes, self.episodes = tuple(self.episodes), []
        return episodes

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()
