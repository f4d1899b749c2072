"""Try the environment before a run starts, to report faults that would end the run in its first steps."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.faults import as_fault, endless, not_finite, reset_result
from drl_cli.envs.frame_stack import allowed_action
from drl_cli.envs.hang import CallWatch, Hung, Tick, hang_limit, no_tick
from drl_cli.envs.make import Env
from drl_cli.envs.observations import Parts, at, outside_box
from drl_cli.envs.trials.sizes import Sizes
from drl_cli.types import MASK, Array, EnvSpec, leaves

STEPS = 200
TRIES = 3


def try_env(
    config: EnvConfig,
    spec: EnvSpec,
    *,
    num: int,
    seconds: float,
    timeout_s: float | None,
    tick: Tick = no_tick,
    is_thorough: bool = False,
) -> list[str]:
    """Take random steps in `num` environments until STEPS steps or `seconds` seconds are over. Return warnings.

    With `is_thorough`, the warnings include sizes and parts that nobody has to change.

    Workers rebuild an environment after a single fault. Therefore EnvFault is raised only if all of TRIES trials with
    different seeds fail, or if a trial hangs for `timeout_s` (None: no limit).
    """
    faults: list[EnvFault] = []
    for i in range(TRIES):
        trial = Trial(config, spec, i, tick)
        try:
            with hang_limit(timeout_s, trial.calls) if timeout_s is not None else nullcontext():
                trial.run(num, seconds)
        except (Exception, Hung, SystemExit) as error:
            faults.append(as_fault(trial.method, error))
            if isinstance(error, Hung):
                break
            continue
        finally:
            trial.close()
        again = "in a run, the environment would be rebuilt (worker.max_restarts)"
        trial.notes.update(trial.sizes.lines(is_thorough))
        return sorted(trial.notes) + [f"{config.id}: {fault}, in a trial; {again}" for fault in faults]
    raise EnvFault(f"{faults[0]}{trial.when}") from faults[0].__cause__


class Trial:
    """Steps some environments as a worker does, and checks everything that they return.

    `method` is the name of the environment's method that was called last. After `run`, `steps_per_s` counts the steps
    of all environments, and `cut_after` is the number of steps after which an episode was truncated, or None.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec, seed: int, tick: Tick) -> None:
        self.config, self.spec, self.seed, self.tick = config, spec, seed, tick
        self.envs: list[Env] = []
        self.columns = leaves(spec.obs)
        self.rng, self.sizes = np.random.default_rng(seed), Sizes(config)
        self.notes: set[str] = set()
        self.has_ended = self.is_outside = False  # whether an episode ended; whether an observation left its Box
        self.method, self.calls, self.steps, self.steps_per_s = "its constructor", CallWatch(), 0, 0.0
        self.cut_after: int | None = None

    @property
    def when(self) -> str:
        """The number of the running step, for messages; '' for the first step."""
        return f", at step {self.steps} of a trial with random actions" if self.steps > 1 else ""

    @property
    def is_endless(self) -> bool:
        """Whether no episode has ended, and nothing limits its steps."""
        return not (self.has_ended or self.spec.is_limited)

    def run(self, num: int, seconds: float) -> None:
        """Run the trial. Raise EnvFault if a check fails; exceptions of the environment are passed on."""
        for _ in range(num):
            with self._call("its constructor"):
                self.envs.append(Env(self.config, self.spec))
        parts = [self._reset(env, self.seed + i) for i, env in enumerate(self.envs)]
        lengths = [0] * num
        began = time.monotonic()
        while self.steps < STEPS and (self.steps < 2 or time.monotonic() < began + seconds):
            self.steps += 1
            for i, env in enumerate(self.envs):
                parts[i], terminated, truncated = self._step(env, parts[i])
                lengths[i] += 1
                if terminated or truncated:
                    self.has_ended = True
                    self.cut_after = self.cut_after if terminated else lengths[i]
                    lengths[i] = 0
                    parts[i] = self._reset(env)
        self.steps_per_s = self.steps * num / (time.monotonic() - began)
        if self.steps == STEPS and self.is_endless:
            self.notes.add(endless(self.config.id, STEPS))
        for env in self.envs:
            self._reset(env)

    def close(self) -> None:
        """Close the environments. If closing fails, add a note."""
        for env in self.envs:
            try:
                self.tick("close")
                env.close()
            except Exception as error:
                self.notes.add(f"{self.config.id}: {as_fault('close', error)}")

    def _call(self, method: str) -> CallWatch:
        """Return the context manager for a call of this method."""
        self.method = method
        self.tick(f"{method}{self.when}")
        return self.calls

    def _reset(self, env: Env, seed: int | None = None) -> Parts:
        with self._call("reset"):
            result = env.raw.reset(seed=seed)
        obs, info = reset_result(result)
        return self._look(env, obs, 0.0, info)[0]

    def _step(self, env: Env, parts: Parts) -> tuple[Parts, bool, bool]:
        spec = self.spec.action
        drawn: Array = np.zeros(0, np.float32)
        if spec.kind == "box":
            drawn = self.rng.uniform(-1, 1, spec.size).astype(np.float32)
            action = env.to_env(drawn[None])[0]
        else:
            action = allowed_action(parts.get(MASK, np.ones(spec.size, np.bool_)), self.spec, env.to_env, self.rng)
        with self._call("step"):
            result: Any = env.raw.step(action)  # Any: the types are checked below
            obs, reward, terminated, truncated, info = result
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if isinstance(value, str | Mapping) or value is None or np.size(value) != 1:
                raise EnvFault(f"step gave {value!r} as {name}, which must be true or false")
        if reward is None or isinstance(reward, str) or np.ndim(reward):
            advice = "; write reward.item()" if np.ndim(reward) and np.size(reward) == 1 else ""
            raise EnvFault(f"step gave {reward!r} as reward, which must be a number{advice}")
        parts, floats = self._look(env, obs, float(reward), info)
        self.sizes.add(floats, float(reward), drawn)
        return parts, bool(terminated), bool(truncated)

    def _look(self, env: Env, obs: Any, reward: float, info: Any) -> tuple[Parts, dict[str, Array]]:
        """Check an observation `obs`, of any type, a reward and an info. Return the observation and its float parts."""
        if not isinstance(info, Mapping):
            raise EnvFault(f"{self.method} gave {type(info).__name__} as info, which must be a dict")
        parts = env.read(obs, info)
        id, floats = self.config.id, dict[str, Array]()
        for path, column in self.columns.items():
            value = parts[path]
            if column.dtype == "float32":
                floats[path] = value.astype(np.float32)[None]
                space_dtype = getattr(env.raw.observation_space, "dtype", None)
                if value.dtype != np.float32 and space_dtype == np.float32 and isinstance(obs, np.ndarray):
                    self.notes.add(f"{id}: observations are {value.dtype} and the space says float32; they are cast")
            elif not np.array_equal(value.astype(column.dtype), value):
                kind = f"{column.dtype}, its space's type"
                raise EnvFault(f"observation{at(path)} of {value.dtype} has values that {kind}, does not have")
        if not self.is_outside and (line := outside_box(id, env.raw.observation_space, obs)):
            self.is_outside = True
            self.notes.add(f"{id}: {line}")
        if not isinstance(obs, np.ndarray | Mapping | tuple) and np.ndim(obs):
            self.notes.add(f"{id}: observations are {type(obs).__name__}s, not arrays; converting them takes time")
        if cause := not_finite(floats, 0, reward):
            raise EnvFault(cause)
        return parts, floats
