"""EnvBatch: step E Gymnasium environments in a loop. Resets add no rows, and no truncation is lost."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.faults import Hung, as_fault, because, is_surely_finite, not_finite, reset_result
from drl_cli.envs.make import Env
from drl_cli.envs.observations import Parts
from drl_cli.envs.stepping.episode import MAX_STEPS, Beginning, generator_state, set_generator
from drl_cli.envs.stepping.step import EnvsBase, Step, numbers
from drl_cli.types import Array, EnvSpec, Episode, Obs, State, flat_columns, leaves, nested, within
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)

SAME = 3
"""If no environment has taken a step yet, rebuilding stops after this number of equal faults in a row."""


class EnvBatch(EnvsBase):
    """Steps E environments and resets them when an episode ends; `obs` `[E, ...]` is the next observation to act on.

    An environment is rebuilt with a new seed if it raises an error, hangs, returns NaN or infinity, or returns an
    observation that does not fit its space. EnvFault is raised if building fails, if more than `max_rebuilds` rebuilds
    are needed in all environments together, or if SAME equal faults in a row occur before any environment takes a step.

    An environment with the attribute `episodic_life` sets `life_lost` in the info of a step that costs a life. Such a
    step counts as `terminated`, but the episode continues.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int = 0) -> None:
        super().__init__(seeds, max_rebuilds)
        self.config, self.spec = config, spec
        self.envs = [Env(config, spec) for _ in seeds]
        parts = leaves(spec.obs)
        self._parts = {path: np.zeros((len(seeds), *column.shape), column.dtype) for path, column in parts.items()}
        self.obs: Obs = self._parts.get("", self._parts)
        self._floats = [path for path, column in parts.items() if column.dtype == "float32"]
        self._returns = [0.0] * len(seeds)
        self._lengths = [0] * len(seeds)
        self._infos: list[Any] = [None] * len(seeds)  # infos of the last step; Any: environments may return anything
        self._has_lives = bool(getattr(self.envs[0].raw.unwrapped, "episodic_life", False))
        self._renewed = [0] * len(seeds)
        self._has_stepped = False  # whether any environment ever took a step
        self._early_faults: list[str] = []  # equal faults in a row before the first step
        self._beginnings = [Beginning(seed, None, {}) for seed in self.seeds]
        self._actions: deque[Array] = deque(maxlen=MAX_STEPS)  # of the running and of some older episodes
        self._missed: list[int] = []
        for i, seed in enumerate(self.seeds):
            if fault := self._reset(i, seed):
                self._rebuild(i, fault)

    def step(self, actions: Array) -> Step:
        """Step every environment and return new arrays. Update `self.obs` in place."""
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
        self.begun = (step.terminated | step.truncated).nonzero()[0].tolist()
        for i in self.begun:
            self.episodes.append(Episode(i, self._returns[i], self._lengths[i], numbers(self._infos[i])))
            if fault := self._reset(i):
                faults[i] = fault
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
        """Return the whole state, except the result of `take_news`."""
        actions = list(self._actions)[len(self._actions) - min(max(self._lengths), len(self._actions)) :]
        state = self._shared_state() | {
            "returns": np.array(self._returns),
            "lengths": np.array(self._lengths),
            "renewed": np.array(self._renewed),
            "missed": np.array(self._missed, np.int64),
        }
        if actions:
            state["actions"] = np.stack(actions)
        for i, (env, beginning) in enumerate(zip(self.envs, self._beginnings, strict=True)):
            rng = generator_state(env)
            state |= nested(f"beginning.{i}", beginning.state()) | ({} if rng is None else {f"rng.{i}": rng})
        return state

    def load_state(self, state: State) -> list[str]:
        """Restore `state()` and continue the running episodes. Return a line for each environment that can't continue.

        Such an environment is rebuilt with a new seed, and its next step is not `valid`. Raise ValueError if the state
        has another number of environments.
        """
        self._load_shared_state(state)
        self._returns, self._lengths = state["returns"].tolist(), state["lengths"].tolist()
        self._renewed = state["renewed"].tolist()
        self._missed, self._actions = state["missed"].tolist(), deque(state.get("actions", ()), MAX_STEPS)
        self._beginnings = [Beginning.from_state(within(state, f"beginning.{i}")) for i in range(len(self.envs))]
        for name, part in flat_columns("obs", self.obs).items():
            part[:] = state[name]
        lost = []
        for i in range(len(self.envs)):
            if cause := self._bring_back(i, state.get(f"rng.{i}")):
                lost.append(f"env {i}: can't continue its episode ({cause}); it begins another")
                self._missed = sorted({*self._missed, i})
                if fault := self._renew(i):
                    self._rebuild(i, fault)
        return lost

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _step_each(
        self,
        actions: Sequence[Any],  # Any: actions of the environment's space
        next_parts: Parts,
        missed: Sequence[int],
    ) -> tuple[Step, dict[int, EnvFault]]:
        """Step every environment that is not in `missed`. Return the step, and the faults of failed environments."""
        size = len(self.envs)
        plain = next_parts[""] if self.envs[0].read.is_single_box else None
        shape = None if plain is None else plain.shape[1:]
        rewards, terminated, truncated = [0.0] * size, [False] * size, [False] * size
        infos, returns, lengths, calls = self._infos, self._returns, self._lengths, self.calls
        faults: dict[int, EnvFault] = {}
        for i, env in enumerate(self.envs):
            if i in missed:
                continue
            try:
                with calls:
                    obs, reward, is_terminated, is_truncated, infos[i] = env.raw.step(actions[i])
                    if plain is not None and getattr(obs, "shape", None) == shape:
                        plain[i] = obs  # skips `env.read`, which is as slow as a small environment's step
                    else:
                        for path, part in env.read(obs, infos[i]).items():
                            next_parts[path][i] = part
                    rewards[i] = reward = float(reward)
                    terminated[i], truncated[i] = bool(is_terminated), bool(is_truncated)
                    returns[i] += reward
                    lengths[i] += 1
            except (Exception, Hung) as error:
                faults[i] = as_fault("step", error)
        ends = np.array(terminated), np.array(truncated)
        next_obs = next_parts.get("", next_parts)
        return Step(np.array(rewards, np.float32), next_obs, *ends, np.ones(size, np.bool_)), faults

    def _reset(self, i: int, seed: int | None = None) -> EnvFault | None:
        """Begin an episode. Return the fault if the reset failed, else None."""
        self._returns[i], self._lengths[i] = 0.0, 0
        try:
            with self.calls:
                env = self.envs[i]
                self._beginnings[i] = Beginning.of(env, seed)
                obs, info = reset_result(env.raw.reset(seed=seed))
                if env.read.is_single_box and getattr(obs, "shape", None) == self._parts[""].shape[1:]:
                    self._parts[""][i] = obs  # as in `_step_each`
                else:
                    for path, part in env.read(obs, info).items():
                        self._parts[path][i] = part
        except (Exception, Hung) as error:
            return as_fault("reset", error)
        if all(np.isfinite(self._parts[path][i]).all() for path in self._floats):
            return None
        return EnvFault(not_finite({path: self._parts[path] for path in self._floats}, i, 0.0))

    def _rebuild(self, i: int, fault: EnvFault) -> None:
        """Rebuild an environment until its reset works. Raise EnvFault if building fails or no rebuild is left."""
        found: EnvFault | None = fault
        while found is not None:
            log.info("env %d: %s", i, found, exc_info=found.__cause__)
            line = f"env {i}: {found}"
            if self._has_stepped or (self._early_faults and self._early_faults[0] != line):
                self._early_faults.clear()
            if not self._has_stepped:
                self._early_faults.append(line)
            if len(self._early_faults) == SAME:
                raise EnvFault(f"{line}, each of the {SAME} times it was made") from found.__cause__
            count = self._count_rebuild(line, found.__cause__)
            found = self._renew(i)
            self.faults.append(f"{line}; environment rebuilt {count}")

    def _renew(self, i: int) -> EnvFault | None:
        """Replace an environment by a new one with a new seed. Return the fault if its reset failed, else None."""
        try:
            with self.calls:
                self.envs[i].close()
        except (Exception, Hung) as error:
            log.info("env %d: %s", i, as_fault("close", error), exc_info=error)
        self._renewed[i] += 1
        try:
            with self.calls:
                self.envs[i] = Env(self.config, self.spec)
        except (Exception, Hung) as error:
            raise EnvFault(f"env {i}: can't be rebuilt: {as_fault('its constructor', error)}") from error
        (seed,) = integers(self.seeds[i], "env", 1, self._renewed[i])
        return self._reset(i, seed)

    def _bring_back(self, i: int, rng: Array | None) -> str | None:
        """Repeat the running episode of an environment. Return the reason if this is not possible, else None."""
        if self._lengths[i] > len(self._actions):
            return f"more than {MAX_STEPS} steps"
        actions = [actions[i] for actions in self._actions][len(self._actions) - self._lengths[i] :]
        try:
            with self.calls:
                parts = self._beginnings[i].repeat(self.envs[i], actions)
                if rng is not None:
                    set_generator(self.envs[i], rng)
        except (Exception, Hung) as error:
            return str(as_fault("repeating it", error))
        same = [parts[path].astype(part.dtype).tobytes() == part[i].tobytes() for path, part in self._parts.items()]
        return None if all(same) else "its repeat differs"

    def _void(self, step: Step, next_parts: Parts, i: int) -> None:
        """Mark an environment's step as not taken: its reward is 0, and `next_obs` is the previous observation."""
        step.valid[i] = step.terminated[i] = step.truncated[i] = False
        step.reward[i] = 0.0
        for path, part in self._parts.items():
            next_parts[path][i] = part[i]
