"""Recordings: steps in the units of the environment, in slices; flat arrays in .npz files and in .hdf5 files."""

import shutil
import tempfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from drl_cli.data.dataset import DatasetError
from drl_cli.errors import MISSING
from drl_cli.types import Array, Columns

PART_BYTES = 1 << 24
"""A recording is read in parts of about this size."""


@dataclass(frozen=True)
class Steps:
    """Steps in a row. Observations and actions are arrays `[steps, ...]` by dotted path."""

    obs: Columns
    action: Columns
    next_obs: Columns


class Recording(ABC):
    """Recorded steps in order of time, in the units of the environment.

    `name` is what the user typed. `env` is the environment's id, and `spaces` has the spaces of its observations and
    actions, if they were recorded. With `has_mask`, observations have a mask that was in `info`. `provenance` is what
    drl-record wrote. `pieces` has the numbers of episodes whose beginning or end is missing. `stamp` is a text that
    changes with the observations and actions. `reward` (float64), `terminated` and `truncated` have all steps.
    """

    name: str
    env: str | None = None
    spaces: tuple[Any, Any] | None = None  # Any: spaces of Gymnasium
    has_mask = False
    reference: tuple[float, float] | None = None
    provenance: Mapping[str, Any] = {}  # Any: json
    pieces: Sequence[int] = ()
    stamp = ""
    reward: Array
    terminated: Array
    truncated: Array

    def __len__(self) -> int:
        return len(self.reward)

    @abstractmethod
    def _read(self, first: int, last: int) -> Steps:
        """Return the steps first..last-1 as new arrays."""

    def read(self, first: int, last: int) -> Steps:
        """Return the steps first..last-1 as new arrays. Raise DatasetError if a value is not finite."""
        steps = self._read(first, last)
        for kind, parts in (("observation", steps.obs), ("action", steps.action), ("next observation", steps.next_obs)):
            for path, part in parts.items():
                if part.dtype.kind == "f" and not np.isfinite(part).all():
                    bad = tuple(np.argwhere(~np.isfinite(part))[0])
                    where = f"{kind}{f' {path!r}' if path else ''} of step {first + bad[0]:,}"
                    raise DatasetError(f"{self.name}: the {where} has {part[bad]}")
        return steps

    def verify(self) -> None:
        """Raise DatasetError if the file is damaged in a way that `read` does not notice."""

    def parts(self) -> list[range]:
        steps = self.read(0, 1)
        row = sum(part.nbytes for parts in (steps.obs, steps.action, steps.next_obs) for part in parts.values())
        size = max(1, PART_BYTES // max(row, 1))
        return [range(first, min(first + size, len(self))) for first in range(0, len(self), size)]


def pieces_of(provenance: Mapping[str, Any]) -> list[int]:  # Any: json
    return [int(number) for number in provenance.get("pieces", ())]


def closed(name: str, terminated: Array, truncated: Array) -> tuple[Array, Array]:
    """Return `truncated`, true also at the last step if the recording ends within an episode, and the episodes' ends.

    The ends are the indices after the last steps. Raise DatasetError if there are no steps.
    """
    if not len(terminated):
        raise DatasetError(f"{name} is empty: it has no steps")
    truncated = truncated & ~terminated
    truncated[-1] = not terminated[-1]
    return truncated, np.flatnonzero(terminated | truncated) + 1


OTHER_NAMES = {"terminals": "terminations", "timeouts": "truncations"}
"""d4rl's names."""
NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")
HINTS = {
    "rewards": "",
    "truncations": " (or timeouts); if no episode was cut, add zeros",
    "terminations": " (or terminals)",
}


class FlatRecording(Recording):
    """Arrays `observations`, `actions`, `rewards`, `terminations`, `truncations`, and maybe `next_observations`.

    Observations and actions with parts are arrays `observations.<path>`. Without `next_observations`, the next
    observation of a step is the observation of the following step. The last step of a truncated episode then has no
    next observation. This step is left out, and the step before it is marked as truncated. The rows of an array are
    read in slices, so that `arrays` may be arrays in files.
    """

    def __init__(self, name: str, arrays: Mapping[str, Any]) -> None:
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

    def _check(self, arrays: Mapping[str, Any]) -> None:
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

    def _flat(self, array: Any, key: str) -> Array:
        values = array[:]
        if values.size != len(values):
            raise DatasetError(f"{self.name}: {key} have shape {values.shape}; expected one number per step")
        flat: Array = values.ravel()
        return flat


def _parts(arrays: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the array `key` with the path "", or the arrays `key.<path>` by path."""
    if key in arrays:
        return {"": arrays[key]}
    return {name.removeprefix(f"{key}."): array for name, array in arrays.items() if name.startswith(f"{key}.")}


def _taken(parts: Columns, rows: Array) -> Columns:
    return {path: part.take(rows, 0) for path, part in parts.items()}


SAMPLES = 64
"""The stamp of a file covers the contents of this number of steps."""


class Hdf5Recording(FlatRecording):
    """The recording in an .hdf5 file."""

    def __init__(self, name: str, path: Path) -> None:
        try:
            import h5py
        except ImportError as error:
            raise DatasetError(".hdf5 files need h5py:  pip install 'drl-cli[minari]'", MISSING) from error
        if not path.is_file():
            raise DatasetError(f"{name} is no file")
        self._file = h5py.File(path, "r")
        super().__init__(name, dict(own_arrays(self._file, name)))
        steps = np.unique(np.linspace(0, len(self) - 1, SAMPLES).astype(int)).tolist() if len(self) else []
        samples = [self._read(step, step + 1) for step in steps]
        parts = [
            part for each in samples for found in (each.obs, each.action, each.next_obs) for part in found.values()
        ]
        self.stamp = f"{path.stat().st_size} {zlib.crc32(b''.join(part.tobytes() for part in parts))}"


def own_arrays(group: Any, name: str, prefix: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in an open file by dotted path. Any: h5py has no types.

    Raise DatasetError if an array lies in another file, or if a link leads to another file or back to its group.
    """
    import h5py

    for key in group:
        path = f"{prefix}{key}"
        if group.get(key, getlink=True, getclass=True) is not h5py.HardLink:
            raise DatasetError(f"{name}: {path} is a link; a dataset has to hold its arrays itself")
        node = group[key]
        if isinstance(node, h5py.Group):
            if node in (*above, group):
                raise DatasetError(f"{name}: {path} is a link to a group above it")
            yield from own_arrays(node, name, f"{path}.", (*above, group))
        elif node.external or node.is_virtual:
            raise DatasetError(f"{name}: {path} lies in another file; a dataset has to hold its arrays itself")
        else:
            yield path, node


LOCAL_HEADER = 30
"""Bytes of the header before a member of a zip file, without the member's name and extra field."""
PIECE_BYTES = 1 << 22
DAMAGE = (zipfile.BadZipFile, ValueError, EOFError, zlib.error, NotImplementedError)
"""Errors of zipfile and numpy for files with other contents than they expect."""


class Member:
    """An array `[n, ...]` in a file. Slices of rows are read from the file when they are asked for."""

    def __init__(self, file: IO[bytes], start: int, name: str) -> None:
        file.seek(start)
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, self.dtype = read_header(file)
        if self.dtype.hasobject:
            raise DatasetError(f"{name} holds Python objects; they need pickle, which could run any code: save numbers")
        self.shape = tuple(shape)
        self._file, self._start = file, file.tell()
        self._row = int(np.prod(self.shape[1:]))
        self._columns: Array | None = None
        if is_fortran and len(self.shape) > 1:  # a row is not in one piece
            self._columns = np.memmap(file, self.dtype, "r", self._start, self.shape, "F")

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> Array:
        """Return the rows of a slice without a step as a new array. Raise OSError if the file has become shorter."""
        first, last, _ = rows.indices(len(self))
        if self._columns is not None:
            return np.array(self._columns[first:last], order="C")
        shape = (last - first, *self.shape[1:])
        self._file.seek(self._start + first * self._row * self.dtype.itemsize)
        values = np.fromfile(self._file, self.dtype, shape[0] * self._row)
        if values.size < shape[0] * self._row:
            raise OSError(f"the file ends before row {last}")
        return values.reshape(shape)


class Npz(Mapping[str, Member]):
    """The arrays of an .npz file by name. A compressed array is first written to a temporary file.

    Raise DatasetError if the file is damaged or needs pickle, and OSError if it can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                self._infos = {info.filename.removesuffix(".npy"): info for info in infos}
        except DAMAGE as error:
            raise DatasetError(f"{path} is damaged or is no .npz file ({error})") from error

    def __getitem__(self, name: str) -> Member:
        info = self._infos[name]
        try:
            return self._open(info, f"{self.path}: {name}")
        except DAMAGE as error:
            raise DatasetError(f"{self.path} is damaged at '{name}' ({error})") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def text(self, name: str) -> str:
        with zipfile.ZipFile(self.path) as archive, archive.open(self._infos[name]) as member:
            return str(npy.read_array(member, allow_pickle=False))

    @property
    def stamp(self) -> str:
        """A text that changes if any content changes: the checksums in the file's directory."""
        return repr(sorted((name, info.CRC, info.file_size) for name, info in self._infos.items()))

    def verify(self) -> None:
        with zipfile.ZipFile(self.path) as archive:
            for info in self._infos.values():
                try:
                    with archive.open(info) as member:
                        while member.read(PIECE_BYTES):
                            pass
                except DAMAGE as error:
                    raise DatasetError(f"{self.path} is damaged ({error})") from error

    def _open(self, info: zipfile.ZipInfo, name: str) -> Member:
        if info.compress_type != zipfile.ZIP_STORED:
            file = tempfile.TemporaryFile()  # noqa: SIM115
            with zipfile.ZipFile(self.path) as archive, archive.open(info) as member:
                shutil.copyfileobj(member, file, PIECE_BYTES)
            return Member(file, 0, name)
        plain = self.path.open("rb")
        plain.seek(info.header_offset)
        header = plain.read(LOCAL_HEADER)
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return Member(plain, info.header_offset + LOCAL_HEADER + lengths, name)
