"""Recordings that are flat arrays by name: .npz files, and .hdf5 files as d4rl has them."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from drl_cli.data.dataset import DatasetError
from drl_cli.data.recording import Recording, Steps, closed
from drl_cli.types import Array, Columns

OTHER_NAMES = {"terminals": "terminations", "timeouts": "truncations"}
"""d4rl's names."""
NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")
HINTS = {
    "rewards": "",
    "truncations": " (or timeouts); if no episode was cut, add zeros",
    "terminations": " (or terminals)",
}


class Slices(Protocol):
    """An array `[n, ...]` whose rows can be read in slices."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __getitem__(self, rows: slice) -> Array: ...


class FlatRecording(Recording):
    """Arrays `observations`, `actions`, `rewards`, `terminations`, `truncations`, and maybe `next_observations`.

    Observations and actions with parts are arrays `observations.<path>`. Without `next_observations`, the next
    observation of a step is the observation of the following step. The last step of a truncated episode then has no
    next observation. This step is left out, and the step before it is marked as truncated.
    """

    def __init__(self, name: str, arrays: Mapping[str, Slices]) -> None:
        self.name = name
        names = {OTHER_NAMES.get(key, key): key for key in arrays}
        used = [name for name in names if name.partition(".")[0] in (*NEEDED, "next_observations")]
        self._names, arrays = sorted(names), {name: arrays[names[name]] for name in used}
        self._obs, self._action, self._next_obs = (
            _parts(arrays, key) for key in ("observations", "actions", "next_observations")
        )
        self._check(arrays)
        rows = len(arrays["rewards"][:])
        reward = self._flat(arrays["rewards"], "rewards").astype(np.float64)
        terminated, truncated = (self._flat(arrays[key], key).astype(np.bool_) for key in NEEDED[3:])
        truncated, _ = closed(name, terminated, truncated)
        self._rows: Array | None = None  # the row of each step, if steps were left out
        if not self._next_obs:
            is_left_out, truncated = truncated, np.append(truncated[1:], False)
            self._rows = np.arange(rows)[~is_left_out]
            reward, terminated, truncated = reward[self._rows], terminated[self._rows], truncated[self._rows]
        self.reward, self.terminated = reward, terminated
        self.truncated, _ = closed(name, terminated, truncated)

    def _read(self, first: int, last: int) -> Steps:
        if self._rows is None:
            obs, action, next_obs = (
                {path: array[first:last] for path, array in parts.items()}
                for parts in (self._obs, self._action, self._next_obs)
            )
            return Steps(obs, action, next_obs)
        rows = self._rows[first:last]
        low, high = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        rows, last_step = rows - low, self.terminated[first:last]
        found = {path: array[low : high + 1] for path, array in self._obs.items()}
        obs = _taken(found, rows)
        action = _taken({path: array[low:high] for path, array in self._action.items()}, rows)
        return Steps(obs, action, _taken(found, rows + ~last_step))  # after a terminal step, nothing reads `next_obs`

    def _check(self, arrays: Mapping[str, Slices]) -> None:
        """Raise DatasetError if arrays are missing or have different lengths."""
        parts = {"observations": self._obs, "actions": self._action}
        if missing := [key for key in NEEDED if not parts.get(key, key in arrays)]:
            text = ", ".join(f"{key}{HINTS.get(key, '')}" for key in missing)
            raise DatasetError(f"{self.name} has no {text}; it has {', '.join(self._names) or 'no arrays'}")
        if self._next_obs and self._next_obs.keys() != self._obs.keys():
            raise DatasetError(f"{self.name}: next_observations have other parts than observations")
        if other := [key for key, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise DatasetError(f"{self.name}: {other[0]} holds {arrays[other[0]].dtype}, not numbers")
        lengths = {key: array.shape[0] if array.shape else 0 for key, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{key} {length:,}" for key, length in lengths.items())
            raise DatasetError(f"{self.name}: the arrays have different lengths: {text}")

    def _flat(self, array: Slices, key: str) -> Array:
        values = array[:]
        if values.size != len(values):
            raise DatasetError(f"{self.name}: {key} have shape {values.shape}; expected one number per step")
        return values.ravel()


def _parts(arrays: Mapping[str, Slices], key: str) -> dict[str, Slices]:
    """Return the array `key` with the path "", or the arrays `key.<path>` by path."""
    if key in arrays:
        return {"": arrays[key]}
    return {name.removeprefix(f"{key}."): array for name, array in arrays.items() if name.startswith(f"{key}.")}


def _taken(parts: Columns, rows: Array) -> Columns:
    return {path: part.take(rows, 0) for path, part in parts.items()}
