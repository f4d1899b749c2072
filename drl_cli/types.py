"""Types that all packages share: columns, observations, specs of environments. Imports no other module of drl_cli."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Columns: TypeAlias = dict[str, Array]
"""Named arrays of equal length: `[rows, ...]` with one row per transition, or batches `[updates, batch, ...]`."""

Obs: TypeAlias = Array | dict[str, Array]
"""Observations `[n, ...]`: an array; for a Dict or Tuple space, a dict of the parts by path (`camera`, `arm.0`)."""

State: TypeAlias = dict[str, Array]
"""The saved state of an object: named arrays of any shapes. Dots in a name separate the levels of nested states."""


@dataclass(frozen=True)
class Column:
    """Shape and dtype of one row of a column. A discrete value is in [0, n); `choices` has the n of each such value."""

    shape: tuple[int, ...]
    dtype: str
    choices: tuple[int, ...] = ()


Schema: TypeAlias = Mapping[str, Column]

ObsSpec: TypeAlias = Column | Mapping[str, Column]
"""The column of an observation; for a Dict or Tuple space, the columns of its parts by path."""

MASK = "action_mask"
"""Name of the legal-action mask, which is a part of the observation: bool `[n, action.size]`."""

T = TypeVar("T")


@dataclass(frozen=True)
class ActionSpec:
    """The actions of a policy. Box actions are in [-1, 1], and `ActionMap` rescales them to the environment's space.

    `size` is the number of dimensions (box), the number of choices (discrete) or the total number of choices of all
    components (multidiscrete). `choices` has the number of choices of each component. `text` names the space in
    messages. If `is_free` is True, some box dimensions lack a bound; in these dimensions the policy's values are not
    rescaled.
    """

    kind: Literal["box", "discrete", "multidiscrete"]
    size: int
    text: str
    choices: tuple[int, ...] = ()
    is_free: bool = False

    def __post_init__(self) -> None:
        if self.kind == "discrete":
            object.__setattr__(self, "choices", (self.size,))

    @property
    def column(self) -> Column:
        """The column of actions in a block of transitions."""
        if self.kind == "box":
            return Column((self.size,), "float32")
        return Column(() if self.kind == "discrete" else (len(self.choices),), "int64")


@dataclass(frozen=True)
class FrameStack:
    """An image observation is a stack of `k` frames along `axis`, the oldest first. With k = 1, it is one frame."""

    axis: int
    k: int


@dataclass(frozen=True)
class EnvSpec:
    """The description of an environment for algorithms and replay.

    `frame_stacks` has the frame stack of each image part by path; replay uses it to store each frame once. `notes` are
    printed for the user. If `is_limited` is False, nothing limits the steps of an episode. `time_limit` is the largest
    number of steps of an episode, if it is known. If `renders` is False, its metadata do not name rgb_array, so that no
    video can be recorded.
    """

    id: str
    obs: ObsSpec
    action: ActionSpec
    frame_stacks: Mapping[str, FrameStack] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_limited: bool = True
    time_limit: int | None = None
    renders: bool = True


class PreviousStep(NamedTuple):
    """The previous action `[E, ...]` and unscaled reward `[E]`; both are 0 where `begins` `[E]` marks a new episode."""

    action: Array
    reward: Array
    begins: Array

    @classmethod
    def none(cls, spec: EnvSpec, num: int) -> "PreviousStep":
        """Return the PreviousStep of `num` environments that all begin an episode."""
        column = spec.action.column
        action = np.zeros((num, *column.shape), column.dtype)
        return cls(action, np.zeros(num, np.float32), np.ones(num, np.bool_))

    @classmethod
    def of(cls, action: Array, reward: Array, begun: Sequence[int]) -> "PreviousStep":
        """Return the PreviousStep after a step. The environments in `begun` begin an episode."""
        begins = np.zeros(len(reward), np.bool_)
        if begun:
            begins[begun] = True
            action, reward = action.copy(), reward.copy()
            action[begins], reward[begins] = 0, 0.0
        return cls(action, reward, begins)


@dataclass(frozen=True)
class Episode:
    """A finished episode: undiscounted unscaled return, number of steps, and numbers from the last step's info."""

    env: int
    ret: float
    length: int
    info: Mapping[str, float] = field(default_factory=dict)


def transition_schema(spec: EnvSpec, extra: Schema | None = None) -> dict[str, Column]:
    """Return the columns of a transition, with the policy's `extra` columns (log-probability, state, ...)."""
    parts = leaves(spec.obs)
    return {
        **{column_name("obs", path): column for path, column in parts.items()},
        "action": spec.action.column,
        "reward": Column((), "float32"),
        **{column_name("next_obs", path): column for path, column in parts.items()},
        "discount": Column((), "float32"),
        "terminated": Column((), "bool"),
        "truncated": Column((), "bool"),
        **(extra or {}),
    }


def sources(worker: int, num_envs: int) -> Array:
    """Return the column `source` of a worker's environments, int32 `[E]`: worker * 2**16 + environment."""
    return (worker * 2**16 + np.arange(num_envs)).astype(np.int32)


def num_rows(columns: Any) -> int:  # Any: an array or a tensor, or a mapping of these
    """Return the number of rows of columns or of observations."""
    if isinstance(columns, np.ndarray):
        return len(columns)
    return len(next(iter(columns.values())) if isinstance(columns, Mapping) else columns)


def leaves(obs: ObsSpec) -> dict[str, Column]:
    """Return the columns of the parts of an observation, by path. An observation without parts has the path ""."""
    return {"": obs} if isinstance(obs, Column) else dict(obs)


def column_name(name: str, path: str) -> str:
    """Return the name of the column for the part `path` of `obs` or `next_obs`."""
    return f"{name}.{path}" if path else name


def flat_columns(name: str, obs: Any) -> dict[str, Any]:  # Any: numpy or torch
    """Return observations as columns: the column `obs`, or a column `obs.<path>` for each part."""
    if not isinstance(obs, Mapping):
        return {name: obs}
    return {column_name(name, path): part for path, part in obs.items()}


def tree(columns: Mapping[str, T], name: str) -> T | dict[str, T]:
    """Return the column `name`, or a dict of its parts by path: the inverse of `flat_columns`. Tensors are allowed."""
    if name in columns:
        return columns[name]
    return {key.removeprefix(f"{name}."): part for key, part in columns.items() if key.startswith(f"{name}.")}


def gathered(columns: dict[str, Any]) -> dict[str, Any]:  # Any: arrays or tensors, or dicts of them
    """Replace the columns `obs.<path>` and `next_obs.<path>` by dicts `obs` and `next_obs`, as algorithms expect."""
    if "obs" in columns:
        return columns
    parts = ("obs.", "next_obs.")
    rest = {name: column for name, column in columns.items() if not name.startswith(parts)}
    return rest | {name: tree(columns, name) for name in ("obs", "next_obs")}


def map_parts(function: Callable[..., Any], tree: Any, *others: Any) -> Any:  # Any: arrays, tensors, or dicts of them
    """Apply the function to an array or tensor, or to each array or tensor in a dict, which may be nested.

    With `others`, which have the same names as `tree`, the function gets one part of each.
    """
    if isinstance(tree, Mapping):
        return {name: map_parts(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    return function(tree, *others)


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key. An empty mapping adds no key."""
    keys: dict[str, Any] = {}
    for name, value in node.items():
        keys |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return keys


def random_obs(spec: ObsSpec, rows: int, rng: np.random.Generator) -> Obs:
    """Return random observations `[rows, ...]` for measurements and tests. An action mask allows all actions."""
    parts = {path: _random(path, column, (rows, *column.shape), rng) for path, column in leaves(spec).items()}
    return tree(flat_columns("obs", parts), "obs")


def _random(path: str, column: Column, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if column.choices:
        return rng.integers(np.reshape(column.choices, column.shape), size=shape).astype(column.dtype)
    if column.dtype == "bool":
        return np.ones(shape, np.bool_) if path == MASK else rng.random(shape) < 0.5
    if column.dtype == "uint8":
        return rng.integers(256, size=shape).astype(np.uint8)
    return rng.standard_normal(shape, np.float32)


def nested(name: str, state: State) -> State:
    """Return the state with the prefix `<name>.` before each name."""
    return {f"{name}.{key}": array for key, array in state.items()}


def within(state: State, name: str) -> State:
    """Return the part of a state that was nested under `name`: the inverse of `nested`."""
    return {key.removeprefix(f"{name}."): array for key, array in state.items() if key.startswith(f"{name}.")}


@dataclass(frozen=True)
class LoadParams:
    """Header of a parameter version. `version` is -1 before the first version.

    The parameter vector is sent only to roles with an older version. The trainer published the version after
    `opt_steps` updates, at `env_steps` environment steps. `random_actions` asks for random actions in the next collect
    call. `exploration` has the values of the exploration schedules at `env_steps`.
    """

    version: int
    opt_steps: int
    env_steps: int
    random_actions: bool = False
    exploration: Mapping[str, float] = field(default_factory=dict)
