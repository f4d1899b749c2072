"""Describe observations and actions in the environment's own units, for running or exporting a policy."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import Env
from drl_cli.envs.observations import ObsMap
from drl_cli.envs.trees import Path, Space, inner, space_leaves
from drl_cli.types import MASK, Array, EnvSpec

Bound = float | list[Any] | None  # Any: nested lists of bounds, one level for each axis


@dataclass(frozen=True)
class ArraySpec:
    """One array of the observations or of the actions.

    `name` is the name of the array in an exported policy. `path` lists the keys in Dict spaces and positions in Tuple
    spaces that lead to the array. Discrete values count from `start`, and `choices` has the number of choices of each
    value. Other values lie between `low` and `high`. A bound is either one number for all values, or nested lists with
    one number for each value, or None if there is no bound.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str
    low: Bound = None
    high: Bound = None
    start: Bound = None
    choices: tuple[int, ...] = ()


class Units:
    """The inputs and outputs of a policy in the environment's units. `to_env` converts the policy's actions.

    A legal-action mask is also an input. Its path is empty if the mask is in `info` and not in the observations.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        env = Env(config, spec)
        env.close()
        self.observations, self.actions = env.raw.observation_space, env.raw.action_space
        self.to_env = env.to_env
        self.inputs = _inputs(self.observations, env.read)
        self.outputs = [_part("action", path, space) for path, space in space_leaves(self.actions)]

    def signature(self) -> dict[str, Any]:
        """Return `inputs`, `outputs` and `actions`.

        `actions` is the tree of the action space as dicts and lists, with None in the position of each output.
        """
        return {
            "inputs": [asdict(part) for part in self.inputs],
            "outputs": [asdict(part) for part in self.outputs],
            "actions": _tree(self.actions),
        }

    def joined(self, observations: list[Any]) -> Any:
        """Stack observations as Gymnasium's vector environments do."""
        empty: Any = create_empty_array(self.observations, len(observations))
        return concatenate(self.observations, observations, empty)

    def apart(self, actions: Any, num: int) -> list[Any]:
        """Split the actions for `num` environments into a list of one action per environment."""
        return list(iterate(batch_space(self.actions, num), actions))


def _inputs(space: Space, read: ObsMap) -> list[ArraySpec]:
    parts, own = [], dict(space_leaves(space))
    paths = {".".join(map(str, path)) or read.root: path for path in own}
    for name, column in read.columns.items():
        if name == MASK:
            parts.append(ArraySpec(MASK, paths.get(MASK, ()), column.shape, "bool"))
            continue
        part = _part("obs", paths[name], own[paths[name]])
        dtype = "int64" if column.choices else column.dtype  # policies are trained with these types
        parts.append(replace(part, shape=column.shape, dtype=dtype, choices=column.choices))
    return parts


def _tree(space: Space) -> Any:
    parts = inner(space)
    if parts is None:
        return None
    trees = {key: _tree(part) for key, part in parts.items()}
    return trees if isinstance(space, spaces.Dict) else list(trees.values())


def _part(name: str, path: Path, space: Space) -> ArraySpec:
    name, shape = ".".join([name, *map(str, path)]), tuple(space.shape or ())
    if isinstance(space, spaces.Box):
        return ArraySpec(name, path, shape, str(space.dtype), _bound(space.low), _bound(space.high))
    if isinstance(space, spaces.Discrete):
        return ArraySpec(name, path, shape, "int64", start=int(space.start), choices=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        start, choices = _bound(space.start), tuple(space.nvec.ravel().tolist())
        return ArraySpec(name, path, shape, str(space.dtype), start=start, choices=choices)
    return ArraySpec(name, path, shape, str(space.dtype), start=0, choices=(2,) * int(np.prod(shape)))  # MultiBinary


def _bound(values: Array) -> Bound:
    """Return one number if all values are equal, else nested lists. None replaces infinite values."""
    if values.size and (values == values.flat[0]).all():
        one = values.flat[0].item()
        return one if np.isfinite(one) else None
    finite = values.astype(object)
    finite[~np.isfinite(values)] = None
    nested: list[Any] = finite.tolist()
    return nested
