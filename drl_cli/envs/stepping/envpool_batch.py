"""E environments of an EnvPool stepped together, so that nothing behind it knows that they are not Gymnasium's."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.envpool_tasks import find_task, info_of, make_pool
from drl_cli.envs.faults import is_surely_finite, not_finite
from drl_cli.envs.stepping.batch import Finished, Step
from drl_cli.envs.stepping.episode_info import numbers
from drl_cli.types import Array, Column, EnvSpec, Episode, State
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)


class EnvPoolBatch(Finished):
    """Steps E environments and resets those whose episode ended; `obs` `[E, ...]` is what to act on next.

    EnvPool resets an environment in the step after its episode's last one. Here those are reset by their ids at once:
    every step of the pool is a step of every environment. An environment that gives a value that is not finite begins
    another episode, at most `max_rebuilds` times over all of them; after that, or when the pool raises, EnvFault is.

    `begun` are the environments in which the last step began an episode. `calls` stays even: no signal interrupts the
    pool, so a worker whose pool hangs is replaced.
    """

    calls = 0

    def __init__(self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int = 0) -> None:
        super().__init__()
        self.task, self.seeds, self.max_rebuilds = find_task(config), list(seeds), max_rebuilds
        self.to_env = ActionMap(self.task.action_space)
        assert isinstance(spec.obs, Column)  # others are refused
        self.obs = np.zeros((len(seeds), *spec.obs.shape), spec.obs.dtype)
        self.begun: list[int] = []
        self._is_float = spec.obs.dtype == "float32"
        self._returns, self._lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        self._rebuilds, self._first_fault = 0, ""
        self._renewed, self._is_new = 0, False
        self._begin(self.seeds)

    def step(self, actions: Array) -> Step:
        """Step every environment; the arrays returned are fresh, and `self.obs` is another one than before."""
        if self._is_new:
            return self._no_step()
        given = np.asarray(self.to_env(actions))
        next_obs, reward, terminated, truncated, info = self._call("step", given)
        self._returns += reward
        self._lengths += 1
        next_obs = np.asarray(next_obs, self.obs.dtype)
        step = Step(
            np.asarray(reward, np.float32),
            next_obs,
            terminated,
            truncated | (self._lengths >= self.task.max_episode_steps),
            np.ones(len(actions), np.bool_),
        )
        if not (is_surely_finite(step.reward) and (not self._is_float or is_surely_finite(next_obs))):
            self._void_bad(step, next_obs, actions)
        self.obs = next_obs
        over = step.terminated | step.truncated
        ended = over.nonzero()[0].tolist()
        self.episodes += [
            Episode(i, float(self._returns[i]), int(self._lengths[i]), numbers(info_of(info, i, len(actions))))
            for i in ended
        ]
        self.begun = ended if step.valid.all() else (over | ~step.valid).nonzero()[0].tolist()
        if self.begun:
            self._reset(self.begun)
        return step

    def state(self) -> State:
        """What `load_state` needs, and EnvBatch's too. Running episodes can't be saved: nothing of them is in it."""
        size = len(self.seeds)
        return {
            "obs": self.obs.copy(),
            "seeds": np.array(self.seeds),
            "returns": np.zeros(size),
            "lengths": np.zeros(size, np.int64),
            "renewed": np.full(size, self._renewed),
            "rebuilds": np.array([self._rebuilds]),
            "missed": np.array([], np.int64),
            "first_fault": np.frombuffer(self._first_fault.encode(), np.uint8),
        }

    def load_state(self, state: State) -> list[str]:
        """Begin all environments anew with seeds that were not used before; returns a line that says so.

        What their next step would have been does not happen: it is not `valid`. Raises ValueError when there were more
        or fewer environments.
        """
        size, saved = len(self.seeds), len(state["lengths"])
        if saved != size:
            raise ValueError(f"the saved worker has {saved} environments, this one has {size} (worker.envs)")
        self.seeds, self._renewed = state["seeds"].tolist(), int(state["renewed"].max()) + 1
        self._rebuilds, self._first_fault = int(state["rebuilds"].item()), state["first_fault"].tobytes().decode()
        self._begin([integers(seed, "env", 1, self._renewed)[0] for seed in self.seeds])
        self._is_new = True
        return [f"envs 0 to {size - 1}: EnvPool can't bring their episodes back; they begin anew"]

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def _begin(self, seeds: Sequence[int]) -> None:
        self.pool = make_pool(self.task, seeds)
        self._reset(list(range(len(seeds))))

    def _reset(self, ids: list[int]) -> None:
        """Begin episodes, until their first observations are finite."""
        self.obs = self.obs.copy()  # the step's rows keep it
        while ids:
            self.obs[ids] = self._call("reset", np.array(ids, np.int32))[0]
            self._returns[ids], self._lengths[ids] = 0.0, 0
            causes = {i: not_finite({"": self.obs}, i, 0.0) for i in ids} if self._is_float else {}
            ids = [i for i, cause in causes.items() if cause and self._count(i, EnvFault(cause))]

    def _no_step(self) -> Step:
        """The first step after `load_state`, which is not taken."""
        none, zeros = np.zeros(len(self.seeds), np.bool_), np.zeros(len(self.seeds), np.float32)
        self._is_new, self.begun = False, list(range(len(self.seeds)))
        return Step(zeros, self.obs.copy(), none, none.copy(), none.copy())

    def _void_bad(self, step: Step, next_obs: Array, actions: Array) -> None:
        """Have no step taken by environments that gave a value that is not finite."""
        for i in range(len(actions)):
            if cause := not_finite({"": next_obs} if self._is_float else {}, i, step.reward[i]):
                step.valid[i] = step.terminated[i] = step.truncated[i] = False
                step.reward[i], next_obs[i] = 0.0, self.obs[i]
                is_policys = not np.isfinite(actions[i]).all()
                self._count(i, EnvFault("the policy's action is not finite" if is_policys else cause))

    def _count(self, i: int, fault: EnvFault) -> bool:
        """Note that an environment begins anew; raises EnvFault when that is too often, else True."""
        log.info("env %d: %s", i, fault)
        line = f"env {i}: {fault}"
        first = self._first_fault = self._first_fault or line
        if self._rebuilds >= self.max_rebuilds:
            before = "" if first == line else f"; the first fault was in {first}"
            raise EnvFault(f"{line}; no rebuild is left (worker.max_restarts={self.max_rebuilds}){before}")
        self._rebuilds += 1
        self.faults.append(f"{line}; it begins anew {self._rebuilds}/{self.max_rebuilds} (worker.max_restarts)")
        return True

    def _call(self, method: str, *args: Array) -> Any:  # Any: EnvPool's answers have no types
        try:
            return getattr(self.pool, method)(*args)
        except Exception as error:
            raise EnvFault(f"EnvPool's {method} raised {type(error).__name__}: {error}") from error
