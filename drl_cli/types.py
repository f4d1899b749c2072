"""The nouns that every part shares: what an environment is, what a column is. Imports nothing of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

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


@dataclass(frozen=True)
class ActionSpec:
    """What a policy may output. Box actions live in [-1, 1]; the environment's edge rescales them.

    `size` is the number of dimensions (box), of choices (discrete), or of choices of all components (multidiscrete);
    `choices` are those of each component, `(size,)` for discrete. `text` is the space as messages name it.
    """

    kind: Literal["box", "discrete", "multidiscrete"]
    size: int
    text: str
    choices: tuple[int, ...] = ()

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
    """What an algorithm knows of an environment; `frame_stack` is how replay stores its images, if it has any."""

    id: str
    obs: Column
    action: ActionSpec
    frame_stack: FrameStack | None = None

    @property
    def obs_size(self) -> int:
        """Number of values in one observation."""
        return int(np.prod(self.obs.shape))


@dataclass(frozen=True)
class Last:
    """What the step before gave each environment: `action` `[E, ...]`, unscaled `reward` `[E]`.

    Both are 0 where an episode `begins`, bool `[E]`.
    """

    action: Array
    reward: Array
    begins: Array

    @classmethod
    def none(cls, spec: EnvSpec, num: int) -> "Last":
        """Episodes begin everywhere."""
        column = spec.action.column
        action = np.zeros((num, *column.shape), column.dtype)
        return cls(action, np.zeros(num, np.float32), np.ones(num, np.bool_))

    @classmethod
    def of(cls, action: Array, reward: Array, begun: Sequence[int]) -> "Last":
        """After a step that began episodes in these environments."""
        begins = np.zeros(len(reward), np.bool_)
        if begun:
            begins[begun] = True
            action, reward = action.copy(), reward.copy()
            action[begins], reward[begins] = 0, 0.0
        return cls(action, reward, begins)


@dataclass(frozen=True)
class Episode:
    """A finished episode: undiscounted, unscaled return and number of steps."""

    env: int
    ret: float
    length: int


def transition_schema(spec: EnvSpec, extra: Schema | None = None) -> dict[str, Column]:
    """The columns of a transition row, plus what the policy adds (log-probability, state, ...)."""
    return {
        "obs": spec.obs,
        "action": spec.action.column,
        "reward": Column((), "float32"),
        "next_obs": spec.obs,
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


def num_rows(columns: Columns) -> int:
    """The common length of the columns."""
    return len(next(iter(columns.values())))


def nested(name: str, state: State) -> State:
    """The state of a part, as it is named in that of the whole."""
    return {f"{name}.{key}": array for key, array in state.items()}


def within(state: State, name: str) -> State:
    """The inverse of `nested`."""
    return {key.removeprefix(f"{name}."): array for key, array in state.items() if key.startswith(f"{name}.")}


def tree(columns: Mapping[str, Array], name: str) -> Obs:
    """Observations from their columns: one column of that name, or the parts `<name>.<path>`."""
    return columns[name] if name in columns else within(dict(columns), name)
