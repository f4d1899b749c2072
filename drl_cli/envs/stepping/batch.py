"""E environments stepped together: our own loop, so that no autoreset row exists and truncation is never lost."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.faults import as_fault, because, is_surely_finite, not_finite
from drl_cli.envs.hang import Hung
from drl_cli.envs.make import Env
from drl_cli.envs.observations import Parts
from drl_cli.envs.stepping.episode import MAX_STEPS, Beginning, generator_state, set_generator
from drl_cli.envs.stepping.episode_info import numbers
from drl_cli.types import (
    Array,
    Columns,
    EnvSpec,
    Episode,
    Obs,
    State,
    flat_columns,
    leaves,
    nested,
    within,
)
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)

SAME = 3
"""Environments in place of one another that fail alike before any has taken a step: the next one would, too."""


@dataclass(frozen=True)
class Step:
    """One step of all environments, `[E, ...]`; `next_obs` is the true final observation where an episode ended.

    Where `valid` is False no step was taken: the environment failed, its episode is over, and it has begun another.
    `terminated` is what is learned from: also where a life was lost and the episode goes on.
    """

    reward: Array
    next_obs: Obs
    terminated: Array
    truncated: Array
    valid: Array

    def columns(self) -> Columns:
        """What a builder takes of it: its fields, the parts of a tree apart."""
        fields = vars(self)
        if isinstance(self.next_obs, np.ndarray):
            return fields
        rest = {name: column for name, column in fields.items() if name != "next_obs"}
        return {**rest, **flat_columns("next_obs", self.next_obs)}


class Finished:
    """What ended in the steps so far, for whoever collects it: whole episodes, and environments by a fault."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.faults: list[str] = []

    def take_episodes(self) -> tuple[Episode, ...]:
        """Episodes finished since the last call."""
        episodes, self.episodes = tuple(self.episodes), []
        return episodes

    def take_faults(self) -> tuple[str, ...]:
        """What happened to environments that began anew since the last call, a line each."""
        faults, self.faults = tuple(self.faults), []
        return faults


class EnvBatch(Finished):
    """Steps E environments and resets those whose episode ended; `obs` `[E, ...]` is what to act on next.

    An environment that raises, hangs, or gives an observation or reward that is not finite or an observation that is
    not as its space says is made anew, with a new seed; the others do not notice. Over all of them that happens up to
    `max_rebuilds` times, after that, or when one can't be made anew, EnvFault is raised. It is raised at once where
    none of them can take its first step.

    An environment that says it has an `episodic_life` marks the steps that cost a life in their info, `life_lost`:
    nothing that comes after such a step counts for its value, but the episode goes on.

    `begun` are the environments in which the last step began an episode. `calls` is odd while an environment is called.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int = 0) -> None:
        super().__init__()
        self.config, self.spec, self.seeds, self.max_rebuilds = config, spec, list(seeds), max_rebuilds
        self.envs = [Env(config, spec) for _ in seeds]
        parts = leaves(spec.obs)
        self._parts = {path: np.zeros((len(seeds), *column.shape), column.dtype) for path, column in parts.items()}
        self.obs: Obs = self._parts.get("", self._parts)
        self.begun: list[int] = []
        self.calls = 0
        self._floats = [path for path, column in parts.items() if column.dtype == "float32"]
        self._returns = [0.0] * len(seeds)
        self._lengths = [0] * len(seeds)
        self._infos: list[Any] = [None] * len(seeds)  # of the last step; Any: what environments give
        self._has_lives = bool(getattr(self.envs[0].raw.unwrapped, "episodic_life", False))
        self._renewed = [0] * len(seeds)
        self._rebuilds, self._first_fault = 0, ""
        self._has_stepped = False  # any of them, ever
        self._stillborn: list[str] = []  # the faults in a row of one that has never stepped
        self._beginnings = [Beginning(seed, None, {}) for seed in self.seeds]
        self._actions: deque[Array] = deque(maxlen=MAX_STEPS)  # of the running episodes, at least
        self._missed: list[int] = []
        for i, seed in enumerate(self.seeds):
            if fault := self._reset(i, seed):
                self._rebuild(i, fault)

    def step(self, actions: Array) -> Step:
        """Step every environment; the arrays returned are fresh, `self.obs` is updated in place."""
        size = len(self.envs)
        missed, self._missed = self._missed, []
        self._actions.append(actions)
        next_parts = {path: np.empty_like(part) for path, part in self._parts.items()}
        step, faults = self._step_each(self.envs[0].to_env(actions), next_parts, missed)
        for i in missed:
            self._void(step, next_parts, i)
        if not (is_surely_finite(step.reward) and all(is_surely_finite(next_parts[path]) for path in self._floats)):
            floats = {path: next_parts[path] for path in self._floats}
            bad = {i: not_finite(floats, i, step.reward[i]) for i in range(size) if i not in faults}
            faults |= {i: EnvFault(cause) for i, cause in bad.items() if cause}
        if len(faults) + len(missed) < size:
            self._has_stepped = True
        elif not self._has_stepped and len(faults) == size > 1:
            raise EnvFault(f"env 0: {faults[0]}, as in all environments at their first step") from faults[0].__cause__
        for i in faults:
            self._void(step, next_parts, i)
        for path, part in next_parts.items():
            self._parts[path][:] = part
        self._begin_episodes(step, faults)
        if self._has_lives:
            lost = [i for i in range(size) if step.valid[i] and self._infos[i].get("life_lost")]
            step.terminated[lost] = True
        for i, fault in faults.items():
            if not np.isfinite(actions[i]).all():
                fault = because("the policy's action is not finite", fault)
            self._rebuild(i, fault)
        self.begun += [i for i in (*faults, *missed) if i not in self.begun]
        if self.begun:
            while len(self._actions) > max(self._lengths):
                self._actions.popleft()
        return step

    def state(self) -> State:
        """All that `load_state` needs, to be taken when the episodes and faults so far have been."""
        actions = list(self._actions)[len(self._actions) - min(max(self._lengths), len(self._actions)) :]
        state = {
            **{name: part.copy() for name, part in flat_columns("obs", self.obs).items()},
            "seeds": np.array(self.seeds),
            "returns": np.array(self._returns),
            "lengths": np.array(self._lengths),
            "renewed": np.array(self._renewed),
            "rebuilds": np.array([self._rebuilds]),
            "missed": np.array(self._missed, np.int64),
            "first_fault": np.frombuffer(self._first_fault.encode(), np.uint8),
        }
        if actions:
            state["actions"] = np.stack(actions)
        for i, (env, beginning) in enumerate(zip(self.envs, self._beginnings, strict=True)):
            rng = generator_state(env)
            state |= nested(f"beginning.{i}", beginning.state()) | ({} if rng is None else {f"rng.{i}": rng})
        return state

    def load_state(self, state: State) -> list[str]:
        """Go on from `state()`, each environment in the middle of its episode; returns a line for each that could not.

        Those begin anew with a new seed, and what their next step would have been does not happen: it is not `valid`.
        Raises ValueError when there were more or fewer environments.
        """
        if len(state["lengths"]) != len(self.envs):
            saved = len(state["lengths"])
            raise ValueError(f"the saved worker has {saved} environments, this one has {len(self.envs)} (worker.envs)")
        self.seeds, self._renewed = state["seeds"].tolist(), state["renewed"].tolist()
        self._returns, self._lengths = state["returns"].tolist(), state["lengths"].tolist()
        self._rebuilds, self._first_fault = int(state["rebuilds"].item()), state["first_fault"].tobytes().decode()
        self._missed, self._actions = state["missed"].tolist(), deque(state.get("actions", ()), MAX_STEPS)
        self._beginnings = [Beginning.from_state(within(state, f"beginning.{i}")) for i in range(len(self.envs))]
        for name, part in flat_columns("obs", self.obs).items():
            part[:] = state[name]
        lost = []
        for i in range(len(self.envs)):
            if cause := self._bring_back(i, state.get(f"rng.{i}")):
                lost.append(f"env {i}: its episode can't be brought back ({cause}); it begins anew")
                self._missed = sorted({*self._missed, i})
                if fault := self._renew(i):
                    self._rebuild(i, fault)
        return lost

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _step_each(
        self, actions: Sequence[Any], next_parts: Parts, missed: Sequence[int]
    ) -> tuple[Step, dict[int, EnvFault]]:
        """One step of every environment that has not missed it, and what went wrong in which. Any: an action."""
        size = len(self.envs)
        plain = next_parts[""] if self.envs[0].read.is_single_box else None
        shape = None if plain is None else plain.shape[1:]
        rewards, terminated, truncated = [0.0] * size, [False] * size, [False] * size
        infos = self._infos
        faults: dict[int, EnvFault] = {}
        for i, env in enumerate(self.envs):
            if i in missed:
                continue
            self.calls += 1
            try:
                obs, reward, is_terminated, is_truncated, infos[i] = env.raw.step(actions[i])
                if plain is not None and getattr(obs, "shape", None) == shape:
                    plain[i] = obs  # without a detour, which costs as much as a step of a small environment
                else:
                    _write(env.read(obs, infos[i]), next_parts, i)
                rewards[i] = reward = float(reward)
                terminated[i], truncated[i] = bool(is_terminated), bool(is_truncated)
                self._returns[i] += reward
                self._lengths[i] += 1
                self.calls += 1
            except (Exception, Hung) as error:
                self.calls += 1
                faults[i] = as_fault("step", error)
        ends = np.array(terminated), np.array(truncated)
        next_obs = next_parts.get("", next_parts)
        return Step(np.array(rewards, np.float32), next_obs, *ends, np.ones(size, np.bool_)), faults

    def _begin_episodes(self, step: Step, faults: dict[int, EnvFault]) -> None:
        """Reset where an episode ended; where that fails it is added to `faults`."""
        self.begun = (step.terminated | step.truncated).nonzero()[0].tolist()
        for i in self.begun:
            self.episodes.append(Episode(i, self._returns[i], self._lengths[i], numbers(self._infos[i])))
            if fault := self._reset(i):
                faults[i] = fault

    def _reset(self, i: int, seed: int | None = None) -> EnvFault | None:
        """Begin an episode; returns why that failed."""
        self._returns[i], self._lengths[i] = 0.0, 0
        self.calls += 1
        try:
            self._beginnings[i] = Beginning.of(self.envs[i], seed)
            _write(self.envs[i].reset(seed), self._parts, i)
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            return as_fault("reset", error)
        cause = not_finite({path: self._parts[path] for path in self._floats}, i, 0.0)
        return EnvFault(cause) if cause else None

    def _rebuild(self, i: int, fault: EnvFault) -> None:
        """Make an environment anew until it can be reset; raises EnvFault when it can't be made, or too often."""
        found: EnvFault | None = fault
        while found is not None:
            log.info("env %d: %s", i, found, exc_info=found.__cause__)
            line = f"env {i}: {found}"
            self._check_stillborn(line, found)
            first = self._first_fault = self._first_fault or line
            if self._rebuilds >= self.max_rebuilds:
                before = "" if first == line else f"; the first fault was in {first}"
                left = f"no rebuild is left (worker.max_restarts={self.max_rebuilds})"
                raise EnvFault(f"{line}; {left}{before}") from found.__cause__
            self._rebuilds += 1
            found = self._renew(i)
            self.faults.append(
                f"{line}; environment rebuilt {self._rebuilds}/{self.max_rebuilds} (worker.max_restarts)"
            )

    def _check_stillborn(self, line: str, fault: EnvFault) -> None:
        """Raise EnvFault where the same has gone wrong at the first reset or step of one made anew again and again."""
        if self._has_stepped or (self._stillborn and self._stillborn[0] != line):
            self._stillborn.clear()
        if not self._has_stepped:
            self._stillborn.append(line)
        if len(self._stillborn) == SAME:
            raise EnvFault(f"{line}, each of the {SAME} times that it was made") from fault.__cause__

    def _renew(self, i: int) -> EnvFault | None:
        """Replace an environment by a new one with a new seed, and reset that; returns why the reset failed."""
        self._close(i)
        self._renewed[i] += 1
        self.calls += 1
        try:
            self.envs[i] = Env(self.config, self.spec)
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            raise EnvFault(f"env {i}: can't be made anew: {as_fault('its constructor', error)}") from error
        (seed,) = integers(self.seeds[i], "env", 1, self._renewed[i])
        return self._reset(i, seed)

    def _bring_back(self, i: int, rng: Array | None) -> str | None:
        """Have an environment repeat its running episode; returns why that is not as it was."""
        if self._lengths[i] > len(self._actions):
            return f"more than {MAX_STEPS} steps"
        actions = [actions[i] for actions in self._actions][len(self._actions) - self._lengths[i] :]
        self.calls += 1
        try:
            parts = self._beginnings[i].repeat(self.envs[i], actions)
            same = [parts[path].astype(part.dtype).tobytes() == part[i].tobytes() for path, part in self._parts.items()]
            if rng is not None:
                set_generator(self.envs[i], rng)
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            return str(as_fault("repeating it", error))
        return None if all(same) else "it is another one when it is repeated"

    def _void(self, step: Step, next_parts: Parts, i: int) -> None:
        """Have no step taken by an environment."""
        step.valid[i] = step.terminated[i] = step.truncated[i] = False
        step.reward[i] = 0.0
        for path, part in self._parts.items():
            next_parts[path][i] = part[i]

    def _close(self, i: int) -> None:
        self.calls += 1
        try:
            self.envs[i].close()
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            log.info("env %d: %s", i, as_fault("close", error), exc_info=error)


def _write(parts: Parts, into: Parts, i: int) -> None:
    """Put an environment's observation into its row."""
    for path, part in parts.items():
        into[path][i] = part
