"""Step E environments of one EnvPool pool together, with the same interface as `EnvBatch`."""

import logging
from collections.abc import Sequence

import numpy as np

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.envpool_tasks import find_task, info_of, make_pool
from drl_cli.envs.faults import is_surely_finite, not_finite
from drl_cli.envs.stepping.pooled import PooledEnvs
from drl_cli.envs.stepping.step import Step, numbers
from drl_cli.types import Array, EnvSpec, Episode

log = logging.getLogger(__name__)


class EnvPoolBatch(PooledEnvs):
    """Steps E environments and resets them when an episode ends; `obs` `[E, ...]` is the next observation to act on.

    By default, EnvPool resets an environment in the step after the last step of its episode. This class resets such
    environments at once, by their ids, so that every step of the pool is a step of every environment. An environment
    that returns NaN or infinity begins a new episode. EnvFault is raised if more than `max_rebuilds` such new episodes
    are needed in all environments together, or if the pool raises an error.
    """

    library = "EnvPool"

    def __init__(self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int = 0) -> None:
        super().__init__(spec, seeds, max_rebuilds)
        self.task = find_task(config)
        self.to_env = ActionMap(self.task.action_space).convert
        self._is_float = self.obs.dtype == np.float32
        self._begin(self.seeds)

    def _step(self, actions: Array) -> Step:
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

    def _begin(self, seeds: Sequence[int]) -> None:
        self.pool = make_pool(self.task, seeds)
        self._reset(list(range(len(seeds))))

    def _reset(self, ids: list[int]) -> None:
        """Begin episodes in these environments, and repeat this until the first observations are finite."""
        self.obs = self.obs.copy()  # the last `Step` refers to the old array
        while ids:
            self.obs[ids] = self._call("reset", np.array(ids, np.int32))[0]
            self._returns[ids], self._lengths[ids] = 0.0, 0
            causes = {i: not_finite({"": self.obs}, i, 0.0) for i in ids} if self._is_float else {}
            ids = [i for i, cause in causes.items() if cause]
            for i in ids:
                self._count(i, str(causes[i]))

    def _void_bad(self, step: Step, next_obs: Array, actions: Array) -> None:
        """Mark the step as not taken in environments that returned NaN or infinity."""
        for i in range(len(actions)):
            if cause := not_finite({"": next_obs} if self._is_float else {}, i, step.reward[i]):
                step.valid[i] = step.terminated[i] = step.truncated[i] = False
                step.reward[i], next_obs[i] = 0.0, self.obs[i]
                is_policys = not np.isfinite(actions[i]).all()
                self._count(i, "the policy's action is not finite" if is_policys else cause)

    def _count(self, i: int, fault: str) -> None:
        """Count a new episode that begins because of a fault. Raise EnvFault if there were too many."""
        log.info("env %d: %s", i, fault)
        line = f"env {i}: {fault}"
        self.faults.append(f"{line}; new episode {self._count_rebuild(line, None)}")
