"""Convert recorded steps, in the units of an environment, to the arrays that a worker makes of them.

Also environments with the spaces of a dataset, for a policy that learned without an environment.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from drl_cli.envs.actions import ActionMap, action_spec
from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import build, read_spec
from drl_cli.envs.observations import ObsMap, Parts, obs_spec, walk
from drl_cli.envs.trees import Space, dotted, parts_of, same_values, space_from_json, space_leaves
from drl_cli.types import MASK, Array, EnvSpec, leaves

EPISODE_STEPS = 100


class StepMap:
    """Converts recorded observations and actions of two spaces. `spec` describes the results.

    Recorded arrays `[n, ...]` are dicts by dotted path, as `parts_of` returns them.
    """

    def __init__(self, observations: Space, actions: Space, spec: EnvSpec) -> None:
        self.observation_space, self.action_space, self.spec = observations, actions, spec
        self._obs, self._actions = ObsMap(observations, spec), ActionMap(actions)

    @classmethod
    def of_env(cls, config: EnvConfig) -> "StepMap":
        spec, env = read_spec(config, trains=False), build(config)
        try:
            return cls(env.observation_space, env.action_space, spec)
        finally:
            env.close()

    @classmethod
    def of_spaces(cls, id: str, observations: Space, actions: Space, has_mask: bool = False) -> "StepMap":
        """Return the map of spaces without an environment. With `has_mask`, observations have a mask from `info`.

        Raise EnvError if a space is not supported.
        """
        action, info = action_spec(id, actions), {MASK: None} if has_mask else {}
        return cls(observations, actions, EnvSpec(id, obs_spec(id, observations, action, info), action))

    @property
    def obs_paths(self) -> list[str]:
        """The paths of the parts of a recorded observation. A mask that comes in `info` is a part, too."""
        return list(leaves(self.spec.obs))

    @property
    def action_paths(self) -> list[str]:
        return [dotted(path) for path, _ in space_leaves(self.action_space)]

    def obs(self, parts: Parts) -> Parts:
        return self._obs.rows(parts)

    def actions(self, parts: Parts) -> tuple[Array, int]:
        return self._actions.inverse(parts)

    def raw_obs(self, parts: Parts) -> Parts:
        """Return observations in the units of the environment: the inverse of `obs`. A mask from `info` stays."""
        found = {path: parts[path] for path in parts.keys() & {MASK}}
        for name, _, space in walk(self.spec.id, self.observation_space):
            path = name if name in parts else "obs"
            found[path] = (parts[path] + getattr(space, "start", 0)).astype(space.dtype)
        return found

    def raw_actions(self, actions: Array) -> Parts:
        """Return actions in the units of the environment: the inverse of `actions`."""
        made = self._actions.convert(actions)
        if isinstance(made, np.ndarray):
            return {"": made}
        rows = [parts_of(action) for action in made]
        return {path: np.stack([row[path] for row in rows]) for path in rows[0]}

    def differences(self, observations: Space, actions: Space) -> list[str]:
        """Return a line for observations and for actions if the spaces of a dataset differ from the environment's."""
        lines = []
        try:
            other = StepMap.of_spaces("the dataset", observations, actions).spec
        except EnvError as error:
            return [str(error)]
        own = {path: part for path, part in leaves(self.spec.obs).items() if path != MASK}
        others = {path: part for path, part in leaves(other.obs).items() if path != MASK}
        if own.keys() == {"obs"} and others.keys() == {""}:  # the mask in `info` has given the observation a name
            others = {"obs": others[""]}
        if own != others:
            lines.append(f"its observations are {observations}; {self.spec.id} has {self.observation_space}")
        if not same_values(actions, self.action_space):
            lines.append(f"its actions are {actions}; {self.spec.id} has {self.action_space}")
        return lines


def inferred_space(parts: Mapping[str, tuple[str, tuple[int, ...], Array, Array]], is_action: bool) -> Space:
    """Return a space for recorded arrays, by path: (dtype, shape of a row, smallest values, largest values).

    Whole numbers become choices from the smallest (at most 0) to the largest value, uint8 images become boxes. A float
    action has the range [-1, 1] if it never left it, else the range of its values.
    """
    found = {path: _inferred(*part, is_action=is_action) for path, part in parts.items()}
    return found[""] if found.keys() == {""} else _nested(found)


def _nested(found: Mapping[str, Space]) -> Space:
    keys = dict.fromkeys(path.partition(".")[0] for path in found)
    tree: dict[str, Space] = {}
    for key in keys:
        below = {path.removeprefix(f"{key}."): space for path, space in found.items() if path.startswith(f"{key}.")}
        tree[key] = _nested(below) if below else found[key]
    return spaces.Dict(tree)


def _inferred(dtype: str, shape: tuple[int, ...], low: Array, high: Array, is_action: bool) -> Space:
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return spaces.MultiBinary(shape)
    if kind == np.uint8 and not is_action:
        return spaces.Box(0, 255, shape, np.uint8)
    if kind.kind in "iu" and not shape:
        start = min(0, int(low))
        return spaces.Discrete(int(high) - start + 1, start=start)
    if kind.kind in "iu" and is_action:
        return spaces.MultiDiscrete(high.astype(np.int64) + 1)
    if not is_action:
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    is_unit = bool((np.abs(low) <= 1).all() and (np.abs(high) <= 1).all())
    low, high = (-np.ones(shape), np.ones(shape)) if is_unit else (low, high)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


class SpacesOnly(gymnasium.Env[Any, Any]):
    """Spaces without dynamics: observations are random samples, rewards are 0, and episodes have EPISODE_STEPS steps.

    The spaces are in JSON, as `space_to_json` writes them. With `has_mask`, `info` allows all actions. Raise EnvError
    if the JSON describes no space.
    """

    def __init__(self, observations: str, actions: str, has_mask: bool = False) -> None:
        self.observation_space, self.action_space = space_from_json(observations), space_from_json(actions)
        self.has_mask, self.steps = has_mask, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 0.0, False, self.steps == EPISODE_STEPS, self._info()

    def _info(self) -> dict[str, Any]:
        if not self.has_mask:
            return {}
        if isinstance(self.action_space, spaces.MultiDiscrete):
            return {MASK: tuple(np.ones(num, np.int8) for num in self.action_space.nvec)}
        assert isinstance(self.action_space, spaces.Discrete)
        return {MASK: np.ones(self.action_space.n, np.int8)}


class ActionsOf(gymnasium.ActionWrapper[Any, Any, Any]):
    """Gives an environment the box of a dataset's actions. Values outside the environment's own box are clamped."""

    def __init__(self, env: "gymnasium.Env[Any, Any]", actions: str) -> None:
        super().__init__(env)
        assert isinstance(env.action_space, spaces.Box)
        self.box, self.action_space = env.action_space, space_from_json(actions)

    def action(self, action: Any) -> Any:
        return np.clip(action, self.box.low, self.box.high).astype(self.box.dtype)
