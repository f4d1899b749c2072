"""E environments stepped together: our own loop, so that no autoreset row exists and truncation is never lost."""

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.episode import MAX_STEPS, Beginning, generator_state, set_generator
from drl_cli.envs.hang import Hung
from drl_cli.envs.make import Env
from drl_cli.types import Array, EnvSpec, Episode, State, nested, within
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """One step of all environments, `[E, ...]`; `next_obs` is the true final observation where an episode ended.

    Where `valid` is False no step was taken: the environment failed, its episode is over, and it has begun another.
    """

    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    valid: Array


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

    An environment that raises, hangs, or gives an observation or reward that is not finite or an observation of another
    shape is made anew, with a new seed; the others do not notice. Over all of them that happens up to `max_rebuilds`
    times, after that, or when one can't be made anew, EnvFault is raised.

    `begun` are the environments in which the last step began an episode. `calls` is odd while an environment is called.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int = 0) -> None:
        super().__init__()
        self.config, self.seeds, self.max_rebuilds = config, list(seeds), max_rebuilds
        self.envs = [Env(config) for _ in seeds]
        self.obs = np.zeros((len(seeds), *spec.obs.shape), spec.obs.dtype)
        self.begun: list[int] = []
        self.calls = 0
        self._is_float = spec.obs.dtype != "uint8"
        self._returns = [0.0] * len(seeds)
        self._lengths = [0] * len(seeds)
        self._renewed = [0] * len(seeds)
        self._rebuilds, self._first_fault = 0, ""
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
        step, faults = self._step_each(self.envs[0].to_env(actions), missed)
        next_obs = step.next_obs
        for i in missed:
            self._void(step, i)
        if not (is_surely_finite(step.reward) and (not self._is_float or is_surely_finite(next_obs))):
            bad = {i: not_finite(next_obs[i], step.reward[i]) for i in range(size) if i not in faults}
            faults |= {i: EnvFault(cause) for i, cause in bad.items() if cause}
        for i in faults:
            self._void(step, i)
        self.obs[:] = next_obs
        self._begin_episodes(step, faults)
        for i, fault in faults.items():
            if not np.isfinite(actions[i]).all():
                fault = _because("the policy's action is not finite", fault)
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
            "obs": self.obs.copy(),
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
        self.obs[:] = state["obs"]
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

    def _step_each(self, actions: Sequence[Any], missed: Sequence[int]) -> tuple[Step, dict[int, EnvFault]]:
        """One step of every environment that has not missed it, and what went wrong in which. Any: an action."""
        size, shape = len(self.envs), self.obs.shape[1:]
        next_obs = np.empty_like(self.obs)
        rewards, terminated, truncated = [0.0] * size, [False] * size, [False] * size
        faults: dict[int, EnvFault] = {}
        for i, env in enumerate(self.envs):
            if i in missed:
                continue
            self.calls += 1
            try:
                obs, reward, is_terminated, is_truncated, _ = env.raw.step(actions[i])
                if getattr(obs, "shape", None) != shape:
                    obs = self._shaped(obs)
                next_obs[i] = obs
                rewards[i] = reward = float(reward)
                terminated[i], truncated[i] = bool(is_terminated), bool(is_truncated)
                self._returns[i] += reward
                self._lengths[i] += 1
                self.calls += 1
            except (Exception, Hung) as error:
                self.calls += 1
                faults[i] = _fault("step", error)
        ends = np.array(terminated), np.array(truncated)
        return Step(np.array(rewards, np.float32), next_obs, *ends, np.ones(size, np.bool_)), faults

    def _begin_episodes(self, step: Step, faults: dict[int, EnvFault]) -> None:
        """Reset where an episode ended; where that fails it is added to `faults`."""
        self.begun = (step.terminated | step.truncated).nonzero()[0].tolist()
        for i in self.begun:
            self.episodes.append(Episode(i, self._returns[i], self._lengths[i]))
            if fault := self._reset(i):
                faults[i] = fault

    def _reset(self, i: int, seed: int | None = None) -> EnvFault | None:
        """Begin an episode; returns why that failed."""
        self._returns[i], self._lengths[i] = 0.0, 0
        self.calls += 1
        try:
            self._beginnings[i] = Beginning.of(self.envs[i], seed)
            self.obs[i] = self._shaped(self.envs[i].reset(seed))
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            return _fault("reset", error)
        cause = not_finite(self.obs[i], 0.0) if self._is_float else None
        return EnvFault(cause) if cause else None

    def _rebuild(self, i: int, fault: EnvFault) -> None:
        """Make an environment anew until it can be reset; raises EnvFault when it can't be made, or too often."""
        found: EnvFault | None = fault
        while found is not None:
            log.info("env %d: %s", i, found, exc_info=found.__cause__)
            line = f"env {i}: {found}"
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

    def _renew(self, i: int) -> EnvFault | None:
        """Replace an environment by a new one with a new seed, and reset that; returns why the reset failed."""
        self._close(i)
        self._renewed[i] += 1
        self.calls += 1
        try:
            self.envs[i] = Env(self.config)
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            raise EnvFault(f"env {i}: can't be made anew: {_fault('its constructor', error)}") from error
        (seed,) = integers(self.seeds[i], "env", 1, self._renewed[i])
        return self._reset(i, seed)

    def _bring_back(self, i: int, rng: Array | None) -> str | None:
        """Have an environment repeat its running episode; returns why that is not as it was."""
        if self._lengths[i] > len(self._actions):
            return f"more than {MAX_STEPS} steps"
        actions = [actions[i] for actions in self._actions][len(self._actions) - self._lengths[i] :]
        self.calls += 1
        try:
            obs = self._shaped(self._beginnings[i].repeat(self.envs[i], actions)).astype(self.obs.dtype)
            if rng is not None:
                set_generator(self.envs[i], rng)
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            return str(_fault("repeating it", error))
        return None if obs.tobytes() == self.obs[i].tobytes() else "it is another one when it is repeated"

    def _void(self, step: Step, i: int) -> None:
        """Have no step taken by an environment."""
        step.valid[i] = step.terminated[i] = step.truncated[i] = False
        step.reward[i], step.next_obs[i] = 0.0, self.obs[i]

    def _close(self, i: int) -> None:
        self.calls += 1
        try:
            self.envs[i].close()
            self.calls += 1
        except (Exception, Hung) as error:
            self.calls += 1
            log.info("env %d: %s", i, _fault("close", error), exc_info=error)

    def _shaped(self, obs: Array) -> Array:
        """The observation as an array; raises EnvFault when it has another shape than the space says."""
        obs = np.asarray(obs)
        if obs.shape != self.obs.shape[1:]:
            raise EnvFault(f"observation has shape {obs.shape}, expected {self.obs.shape[1:]}")
        return obs


def _fault(method: str, error: BaseException) -> EnvFault:
    """Why a call of an environment's method failed, in one line."""
    if isinstance(error, EnvFault):
        return error
    cause = str(error) if isinstance(error, Hung) else f"{method} raised {type(error).__name__}: {error}"
    return _because(" ".join(cause.split()), error)


def _because(text: str, error: BaseException) -> EnvFault:
    fault = EnvFault(text)
    fault.__cause__ = error
    return fault


def is_surely_finite(values: Array) -> bool:
    """Whether the sum of their squares is finite: in one pass, where a look at each value takes several."""
    return math.isfinite(np.vdot(values, values))


def not_finite(obs: Array, reward: float) -> str | None:
    """Which value is NaN or infinite, if one is."""
    if not np.isfinite(reward):
        return f"reward is {reward}"
    bad = np.argwhere(~np.isfinite(obs))
    return f"observation{bad[0].tolist()} is {obs[tuple(bad[0])]}" if len(bad) else None
