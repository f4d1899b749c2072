"""The nouns that every part shares: what an environment is, what a column is. Imports nothing of ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Columns: TypeAlias = dict[str, Array]
"""Named arrays of equal length: one row per transition, `[rows, ...]`; a batch is `[updates, batch, ...]`."""

Obs: TypeAlias = Array | dict[str, Array]
"""Observations `[n, ...]`: an array, or, of a Dict or Tuple space, its parts by path (`camera`, `arm.angles`, `0`)."""

State: TypeAlias = dict[str, Array]
"""Named arrays of any shapes: what a role saves of itself to go on exactly. Names may be nested with dots."""


@dataclass(frozen=True)
class Column:
    """Shape of one row and its dtype; where the values are choices, `choices` says of how many from 0 each is one."""

    shape: tuple[int, ...]
    dtype: str
    choices: tuple[int, ...] = ()


Schema: TypeAlias = Mapping[str, Column]

ObsSpec: TypeAlias = Column | Mapping[str, Column]
"""What observations are made of: one column, or, of a Dict or Tuple space, the columns of its parts by path."""

MASK = "action_mask"
"""The part of an observation that says which choices are allowed now, bool `[n, action.size]`."""

T = TypeVar("T")


@dataclass(frozen=True)
class ActionSpec:
    """What a policy may output. Box actions live in [-1, 1]; the environment's edge rescales them.

    `size` is the number of dimensions (box), of choices (discrete), or of choices of all components (multidiscrete);
    `choices` are those of each component, `(size,)` for discrete. `text` is the space as messages name it. Where a
    box `is_free`, not all its dimensions have both bounds, and those take the policy's values as they are.
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
        """The column that an action fills in a block."""
        if self.kind == "box":
            return Column((self.size,), "float32")
        return Column(() if self.kind == "discrete" else (len(self.choices),), "int64")


@dataclass(frozen=True)
class FrameStack:
    """An image observation is `k` frames along `axis`, oldest first; with k = 1 all of it is one frame."""

    axis: int
    k: int


@dataclass(frozen=True)
class EnvSpec:
    """What an algorithm knows of an environment.

    `frame_stacks` is how replay stores images, by the path of each image part; `notes` are for the user to read.
    """

    id: str
    obs: ObsSpec
    action: ActionSpec
    frame_stacks: Mapping[str, FrameStack] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class PreviousStep(NamedTuple):
    """What the step before gave each environment: `action` `[E, ...]`, unscaled `reward` `[E]`.

    Both are 0 where an episode `begins`, bool `[E]`.
    """

    action: Array
    reward: Array
    begins: Array

    @classmethod
    def none(cls, spec: EnvSpec, num: int) -> "PreviousStep":
        """Episodes begin everywhere."""
        column = spec.action.column
        action = np.zeros((num, *column.shape), column.dtype)
        return cls(action, np.zeros(num, np.float32), np.ones(num, np.bool_))

    @classmethod
    def of(cls, action: Array, reward: Array, begun: Sequence[int]) -> "PreviousStep":
        """After a step that began episodes in these environments."""
        begins = np.zeros(len(reward), np.bool_)
        if begun:
            begins[begun] = True
            action, reward = action.copy(), reward.copy()
            action[begins], reward[begins] = 0, 0.0
        return cls(action, reward, begins)


@dataclass(frozen=True)
class Episode:
    """A finished episode: undiscounted, unscaled return, number of steps, and the numbers in its last step's info."""

    env: int
    ret: float
    length: int
    info: Mapping[str, float] = field(default_factory=dict)


def transition_schema(spec: EnvSpec, extra: Schema | None = None) -> dict[str, Column]:
    """The columns of a transition row, plus what the policy adds (log-probability, state, ...)."""
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
    """Who makes a row, int32 `[E]`: worker * 2**16 + environment; the column `source` of every row in replay."""
    return (worker * 2**16 + np.arange(num_envs)).astype(np.int32)


def empty_columns(schema: Schema, rows: int) -> Columns:
    """Uninitialised columns of `rows` rows."""
    return {name: np.empty((rows, *column.shape), column.dtype) for name, column in schema.items()}


def num_rows(columns: Obs | Columns) -> int:
    """The common length of the columns, or of the parts of an observation."""
    return len(columns if isinstance(columns, np.ndarray) else next(iter(columns.values())))


def leaves(obs: ObsSpec) -> dict[str, Column]:
    """The parts of an observation by path; the only one of a plain space has the path ""."""
    return {"": obs} if isinstance(obs, Column) else dict(obs)


def column_name(name: str, path: str) -> str:
    """The column that holds a part of `obs` or `next_obs`."""
    return f"{name}.{path}" if path else name


def flat_columns(name: str, obs: Obs) -> Columns:
    """An observation's parts as columns: `obs`, or `obs.<path>` for each."""
    if isinstance(obs, np.ndarray):
        return {name: obs}
    return {column_name(name, path): part for path, part in obs.items()}


def tree(columns: Mapping[str, T], name: str) -> T | dict[str, T]:
    """The inverse of `flat_columns`, of arrays or tensors: the column `name`, or the parts of a tree by path."""
    if name in columns:
        return columns[name]
    return {key.removeprefix(f"{name}."): part for key, part in columns.items() if key.startswith(f"{name}.")}


def gathered(columns: dict[str, Any]) -> dict[str, Any]:  # Any: arrays or tensors, and of a tree dicts of them
    """Columns with `obs` and `next_obs` as an algorithm is given them: of a tree each is a dict of parts by path."""
    if "obs" in columns:
        return columns
    found: dict[str, Any] = {}
    for key, column in columns.items():
        name, _, path = key.partition(".")
        if path and name in ("obs", "next_obs"):
            found.setdefault(name, {})[path] = column
        else:
            found[key] = column
    return found


def map_parts(function: Callable[[Array], Array], obs: Obs) -> Obs:
    """An observation with each of its parts changed."""
    return function(obs) if isinstance(obs, np.ndarray) else {path: function(part) for path, part in obs.items()}


def random_obs(spec: ObsSpec, rows: int, rng: np.random.Generator) -> Obs:
    """Observations `[rows, ...]` of any values that fit, for measurements and tests; a mask allows everything."""
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
    """The state of a part, as it is named in that of the whole."""
    return {f"{name}.{key}": array for key, array in state.items()}


def within(state: State, name: str) -> State:
    """The inverse of `nested`."""
    return {key.removeprefix(f"{name}."): array for key, array in state.items() if key.startswith(f"{name}.")}
