"""Measure the environment steps/s of one worker, and of a plain loop of `env.step` that repeats the same episodes."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from drl_cli.bench.figures import ROUNDS, Rate, timed
from drl_cli.envs.actions import ActionMap
from drl_cli.envs.ale_vector import make_vector
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.envpool_tasks import find_task, make_pool
from drl_cli.envs.make import build
from drl_cli.envs.stepping.ale_batch import AleBatch
from drl_cli.errors import EnvironmentFailed, RunError
from drl_cli.runtime.config import Config
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.roles.normalization import numpy_program
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.outside import raised
from drl_cli.utils.seeding import integers


class Collecting:
    """A worker, and separate environments in which a plain loop repeats the worker's actions."""

    def __init__(self, config: Config, spec: EnvSpec, params_header: LoadParams, params: Array) -> None:
        self.params_header, self.rows = params_header, config.rows_per_collect
        self.worker = Worker(config, spec, 0, 0, numpy_program(config, spec)[0])
        self.actions: list[Array] = []
        seeds = integers(config.seed, "worker", config.worker.envs, 0, 0)
        self.bare: BareEnvs | BarePool | BareVector
        if isinstance(self.worker.envs, AleBatch):
            self.bare = BareVector(config.env, seeds, self.worker.envs.num_threads)
        else:
            self.bare = (BarePool if config.env.backend == "envpool" else BareEnvs)(config.env, seeds)
        step = self.worker.envs.step

        def recorded(actions: Array) -> Any:
            self.actions.append(actions)
            return step(actions)

        self.worker.envs.step = recorded  # type: ignore[method-assign]  # recording costs too little to measure
        self.worker.collect(params_header, params)

    def by_worker(self, collects: int) -> Rate:
        """Return the rate of environment steps over `collects` collect calls."""

        def work() -> int:
            for _ in range(collects):
                self.worker.collect(self.params_header)
            return collects * self.rows

        return timed(work)

    def by_bare_loop(self) -> Rate:
        """Return the rate of a plain loop that repeats the worker's steps since the last call, including resets."""
        taken, self.actions = [self.bare.to_env(actions) for actions in self.actions], []

        def work() -> int:
            for actions in taken:
                self.bare.step(actions)
            return len(taken) * self.worker.config.worker.envs

        return timed(work)

    def close(self) -> None:
        self.worker.close()
        self.bare.close()


class BareEnvs:
    """Gymnasium environments. `step` makes one step in each, and resets those whose episode has ended."""

    def __init__(self, config: EnvConfig, seeds: Sequence[int]) -> None:
        self.envs: list[Any] = [build(config) for _ in seeds]  # Any: environments with any spaces
        self.to_env = ActionMap(self.envs[0].action_space)
        for env, seed in zip(self.envs, seeds, strict=True):
            env.reset(seed=seed)

    def step(self, actions: Any) -> None:  # Any: an action of the space
        for env, action in zip(self.envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    def close(self) -> None:
        for env in self.envs:
            env.close()


class BarePool:
    """The environments of an EnvPool. `step` makes one step in each, and resets those whose episode has ended."""

    def __init__(self, config: EnvConfig, seeds: Sequence[int]) -> None:
        task = find_task(config)
        self.to_env, self.pool = ActionMap(task.action_space), make_pool(task, seeds)
        self.pool.reset()

    def step(self, actions: Any) -> None:
        _, _, terminated, truncated, _ = self.pool.step(np.asarray(actions))
        if (over := terminated | truncated).any():
            self.pool.reset(over.nonzero()[0].astype(np.int32))

    def close(self) -> None:
        self.pool.close()


class BareVector:
    """ale-py's vector environment. `step` makes one step in each game, and resets those whose episode has ended."""

    def __init__(self, config: EnvConfig, seeds: Sequence[int], num_threads: int) -> None:
        game: Any = build(config).unwrapped
        self.to_env, self.vector = ActionMap(game.action_space), make_vector(game, len(seeds), num_threads)
        self.vector.reset(seed=np.array(seeds))

    def step(self, actions: Any) -> None:
        _, _, terminated, truncated, _ = self.vector.step(np.array(actions))
        if (over := terminated | truncated).any():
            self.vector.reset(options={"reset_mask": over})

    def close(self) -> None:
        self.vector.close()


def measure(
    config: Config, spec: EnvSpec, params_header: LoadParams, params: Array, num_envs: int, seconds: float
) -> tuple[Sequence[Rate], Sequence[Rate]]:
    """Measure the worker and the plain loop for about `seconds`, with `num_envs` environments. Return their rates.

    Each list has one rate per round. Raise EnvironmentFailed if an environment raises.
    """
    sized = replace(config, worker=replace(config.worker, envs=num_envs))
    try:
        with closing(Collecting(sized, spec, params_header, params)) as both:
            both.by_bare_loop()
            a_collect_s = both.rows / both.by_worker(1).per_s
            collects = max(1, round(seconds / 2 / ROUNDS / a_collect_s))
            rounds = [(both.by_worker(collects), both.by_bare_loop()) for _ in range(ROUNDS)]
    except RunError:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{config.env.id} {raised(error)}") from error
    return [worker for worker, _ in rounds], [bare for _, bare in rounds]
