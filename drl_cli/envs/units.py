"""Observations and actions in an environment's own units: what each part of them is, as plain values."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import Env
from drl_cli.envs.observations import ObsMap
from drl_cli.envs.trees import Path, Space, inner, space_leaves
from drl_cli.types import MASK, Array, EnvSpec

Bound = float | list[Any] | None  # Any: bounds again, nested by the axes of the part


@dataclass(frozen=True)
class ArraySpec:
    """One part of the observations, or of the actions: an array of this shape and dtype.

    `name` is what an exported policy calls it, `path` its keys in Dict and positions in Tuple spaces. Choices count
    from `start`, and there are `choices` of each (of actions and of observations alike). All else lies between `low`
    and `high`: one bound for all values, or one for each; None where there is none.
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
    """The inputs and outputs of a policy for an environment, and what turns its own actions into the environment's.

    A mask of allowed actions is an input too; its path is empty where it is in `info`, not in the observations.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        env = Env(config, spec)
        env.close()
        self.observations, self.actions = env.raw.observation_space, env.raw.action_space
        self.to_env: ActionMap = env.to_env
        self.inputs = _inputs(self.observations, env.read)
        self.outputs = [_part("action", path, space) for path, space in space_leaves(self.actions)]

    def signature(self) -> dict[str, Any]:
        """`inputs`, `outputs`, and `actions`, the tree of the outputs: an object, a list, or null for an output."""
        return {
            "inputs": [asdict(part) for part in self.inputs],
            "outputs": [asdict(part) for part in self.outputs],
            "actions": _tree(self.actions),
        }

    def joined(self, observations: list[Any]) -> Any:  # Any: what the spaces say, as in all of these
        """Observations as one of Gymnasium's vector environments gives them."""
        empty: Any = create_empty_array(self.observations, len(observations))
        return concatenate(self.observations, observations, empty)

    def apart(self, actions: Any, num: int) -> list[Any]:
        """The inverse for actions: one for each of so many environments."""
        return list(iterate(batch_space(self.actions, num), actions))


def _inputs(space: Space, read: ObsMap) -> list[ArraySpec]:
    parts, own = [], dict(space_leaves(space))
    paths = {".".join(map(str, path)) or read.root: path for path in own}
    for name, column in read.columns.items():
        if name == MASK:
            parts.append(ArraySpec(MASK, paths.get(MASK, ()), column.shape, "bool"))
            continue
        part = _part("obs", paths[name], own[paths[name]])
        dtype = "int64" if column.choices else column.dtype  # what policies are trained on
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
    """One number where all are equal, else a list as the array is nested; None for what is infinite."""
    if values.size and (values == values.flat[0]).all():
        one = values.flat[0].item()
        return one if np.isfinite(one) else None
    finite = values.astype(object)
    finite[~np.isfinite(values)] = None
    nested: list[Any] = finite.tolist()
    return nested
