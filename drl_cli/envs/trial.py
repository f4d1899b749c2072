"""Try the environment before a run starts, to report faults that would end the run in its first steps."""

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.faults import CallWatch, Hung, Tick, as_fault, endless, hang_limit, no_tick, not_finite, reset_result
from drl_cli.envs.make import Env
from drl_cli.envs.observations import Parts, at, outside_box
from drl_cli.envs.wrap import allowed_action
from drl_cli.types import MASK, Array, EnvSpec, leaves

LARGE, SMALL = 100.0, 1e-3
"""A root mean square beyond these is far from 1."""
USUAL = (0.05, 10.0)
"""Networks learn best from parts whose largest value is above, and whose root mean square is below."""
ENOUGH = 100
"""Steps after which a part of an observation that has not changed is named."""
MOST_NAMED = 5


class Sizes:
    """Collects observations and rewards of a trial's steps. The generators are compared with those at the start."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self._rows: dict[str, list[Array]] = defaultdict(list)
        self._rewards: list[float] = []
        self._actions: list[Array] = []
        self._before = _generators()

    def add(self, floats: dict[str, Array], reward: float, action: Array) -> None:
        """Add the float parts of a step's observation, each `[1, ...]`, the reward and the action. Leave out images.

        The action is in [-1, 1] `[A]`, or empty if it is a choice.
        """
        for path, value in floats.items():
            if value.ndim <= 2:
                self._rows[path].append(value.reshape(-1))
        self._rewards.append(reward)
        self._actions.append(action)

    @property
    def is_unusual(self) -> bool:
        """Whether a part of the observations has a size outside USUAL. Parts that never changed can't be too small."""
        for rows in self._rows.values():
            values = np.stack(rows).astype(np.float64)
            largest, sizes = np.abs(values).max(0), np.sqrt(np.square(values).mean(0))
            if (sizes > USUAL[1]).any() or ((largest < USUAL[0]) & (values.std(0) > 0)).any():
                return True
        return False

    @property
    def is_sparse(self) -> bool:
        """Whether no reward was above 0, and the rewards depend on nothing but the size of the action."""
        rewards, actions = np.asarray(self._rewards), np.stack(self._actions).astype(np.float64)
        sizes = np.stack([np.ones(len(rewards)), np.abs(actions).sum(1), np.square(actions).sum(1)], 1)
        rest = rewards - sizes @ np.linalg.lstsq(sizes, rewards, rcond=None)[0]
        return bool(rewards.max() <= 0 and np.abs(rest).max() <= 1e-3 * np.abs(rewards).max())

    def lines(self, is_thorough: bool) -> Iterator[str]:
        """Yield a warning for each size that no key scales. If `is_thorough`, also name what is always equal."""
        num, id = len(self._rewards), self.config.id
        for whose, state in _generators().items():
            if state != self._before[whose]:
                advice = "draw from self.np_random, or a resumed run differs from one that was not stopped"
                yield f"{id}: its random numbers come from {whose} global generator; {advice}"
        for path, rows in self._rows.items():
            values = np.stack(rows).astype(np.float64)
            sizes, changes = np.sqrt(np.square(values).mean(0)), values.std(0) > 0
            if (line := _far(sizes[changes])) and not self.config.normalize_obs:
                yield f"{id}: observations{at(path)} have parts {line}; env.normalize_obs=true brings them near 1"
            if is_thorough and num >= ENOUGH and not changes.all():
                parts = _numbers(np.flatnonzero(~changes))
                yield f"{id}: {parts} of observations{at(path)} never changed in {num} steps"
        if is_thorough and num >= ENOUGH and not any(self._rewards):
            advice = "if success is rare, reward=rnd rewards what is new"
            yield f"{id}: all rewards of {num} random steps were 0; {advice}"
        size = np.sqrt(np.square([reward for reward in self._rewards if reward] or [1.0]).mean(keepdims=True))
        is_scaled = self.config.normalize_reward or self.config.reward_scale != 1.0 or self.config.reward_clip
        if (line := _far(size)) and not is_scaled:
            yield f"{id}: rewards are {line}; env.normalize_reward=true brings them near 1"


def _generators() -> dict[str, Any]:
    numpy = np.random.get_state(legacy=False)["state"]
    return {"numpy's": (numpy["key"].tobytes(), numpy["pos"]), "Python's": random.getstate()}


def _far(sizes: Array) -> str:
    if len(sizes) and sizes.max() >= LARGE:
        return f"of size {sizes.max():.1g}"
    return f"of size {sizes.min():.1g}" if len(sizes) and sizes.min() <= SMALL else ""


def _numbers(places: Array) -> str:
    """Return `parts 0, 3 and 12 more`, the first parts of a row by number."""
    named, more = ", ".join(map(str, places[:MOST_NAMED])), len(places) - MOST_NAMED
    return f"part{'s' * (len(places) > 1)} {named}{f' and {more} more' if more > 0 else ''}"


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
        return f", at step {self.steps} of a trial with random actions" if self.steps > 1 else ""

    @property
    def is_endless(self) -> bool:
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
        for env in self.envs:
            try:
                self.tick("close")
                env.close()
            except Exception as error:
                self.notes.add(f"{self.config.id}: {as_fault('close', error)}")

    def _call(self, method: str) -> CallWatch:
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
            result: Any = env.raw.step(action)
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
