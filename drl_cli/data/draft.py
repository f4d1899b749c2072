"""A draft: the whole episodes of a recording that is not complete, in a folder NAME.partial.

The folder has `header.json`, one file for each array, and `episodes.jsonl` with one line for each episode. The line of
an episode is written last, so a process that is killed leaves all episodes that had ended.
"""

import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from drl_cli.data.dataset import DatasetError
from drl_cli.data.find import EPISODES, is_draft
from drl_cli.types import Array, Columns
from drl_cli.utils.files import lock, replace_file

HEADER, LOCK, METADATA = "header.json", ".lock", "metadata"
OBS, NEXT_OBS, ACTION, FLAGS = (
    "observations",
    "next_observations",
    "actions",
    ("rewards", "terminations", "truncations"),
)
PIECE_BYTES = 1 << 22
DAMAGE = (KeyError, ValueError, TypeError, AttributeError)
"""Errors for files with other contents than those of a draft."""


@dataclass(frozen=True)
class Episode:
    """Steps in the units of the environment: `obs` `[T+1, ...]` and `action` `[T, ...]` by dotted path.

    A mask from `info` is a part of `obs`, as in an EnvSpec. `reward`, `terminated` and `truncated` are `[T]`. Without
    `is_whole`, the steps are only a piece of an episode: its beginning or its end is missing.
    """

    obs: Columns
    action: Columns
    reward: Array
    terminated: Array
    truncated: Array
    seed: int | None = None
    is_whole: bool = True


@dataclass
class Written:
    """Counts of a recording: steps, episodes, the return of each whole episode, and the numbers of the others.

    `ended_by` is the exception of the signal that ended the recording early.
    """

    steps: int = 0
    episodes: int = 0
    terminations: int = 0
    returns: list[float] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    ended_by: BaseException | None = None

    def add(self, episode: Episode) -> None:
        if episode.is_whole:
            self.returns.append(float(episode.reward.sum(dtype=np.float64)))
        else:
            self.pieces.append(self.episodes)
        self.steps += len(episode.reward)
        self.episodes += 1
        self.terminations += int(episode.terminated.sum())

    def statistics(self) -> dict[str, float | list[int]]:
        """Return the counts by name. The mean, deviation, minimum and maximum are those of whole episodes, if any."""
        counts = {"steps": self.steps, "episodes": self.episodes, "terminations": self.terminations}
        names = ("mean", "std", "min", "max") if self.returns else ()
        returns = {f"return_{name}": float(getattr(np, name)(self.returns)) for name in names}
        return {**counts, "pieces": self.pieces, **returns}


def draft_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


class Column:
    """Some rows of an array in a file. A slice is read when it is asked for."""

    def __init__(self, stored: Array, rows: Array) -> None:
        self._stored, self._rows = stored, rows
        self.shape, self.dtype = (len(rows), *stored.shape[1:]), stored.dtype

    def __getitem__(self, wanted: slice) -> Array:
        return np.asarray(self._stored[self._rows[wanted]])

    def pieces(self) -> Iterator[Array]:
        """Yield all rows, in pieces of about `PIECE_BYTES`."""
        size = max(1, PIECE_BYTES // max(1, self._stored[:1].nbytes))
        for first in range(0, len(self._rows), size):
            yield self[first : first + size]


class Draft(Mapping[str, Column]):
    """The arrays of a draft by name, as in the .npz file that its recording may become.

    Raise DatasetError if the draft has no episode or is damaged, and OSError if it can't be read.
    """

    def __init__(self, folder: Path) -> None:
        *lines, _ = (folder / EPISODES).read_text().split("\n")  # what follows the last line end is not complete
        if not lines:
            raise DatasetError(f"{folder} is empty: the recording was interrupted before its first episode ended")
        try:
            header = json.loads((folder / HEADER).read_text())
            self.metadata: dict[str, Any] = header[METADATA]  # Any: json
            self.arrays: list[list[Any]] = header["arrays"]
            self._index = [json.loads(line) for line in lines]
            self._starts = np.cumsum([0, *(int(each["steps"]) for each in self._index)])
            self._stored = {
                name: np.memmap(folder / f"{i}.bin", np.dtype(dtype), "r", shape=(self.rows(name), *row))
                for i, (name, dtype, row) in enumerate(self.arrays)
            }
        except DAMAGE as error:
            raise DatasetError(f"{folder} is damaged, or it is no recording ({error})") from error

    def rows(self, name: str) -> int:
        """Return the number of rows in the file of an array. An episode has one observation more than steps."""
        return int(self._starts[-1]) + len(self._index) * (_kind(name) == OBS)

    def __getitem__(self, name: str) -> Column:
        steps = np.arange(self._starts[-1])
        if _kind(name) not in (OBS, NEXT_OBS):
            return Column(self._stored[name], steps)
        episodes = np.repeat(np.arange(len(self._index)), np.diff(self._starts))
        return Column(self._stored[name.removeprefix("next_")], steps + episodes + (_kind(name) == NEXT_OBS))

    def __iter__(self) -> Iterator[str]:
        obs = [name for name in self._stored if _kind(name) == OBS]
        return iter([*obs, *(f"next_{name}" for name in obs), *(name for name in self._stored if name not in obs)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name == METADATA or name in [*self]

    def episodes(self) -> Iterator[Episode]:
        for i, each in enumerate(self._index):
            first, last = self._starts[i : i + 2].tolist()
            obs = {path: part[first + i : last + i + 1] for path, part in self._parts(OBS).items()}
            action = {path: part[first:last] for path, part in self._parts(ACTION).items()}
            reward, terminated, truncated = (self._stored[name][first:last] for name in FLAGS)
            yield Episode(obs, action, reward, terminated, truncated, each["seed"], each["is_whole"])

    def counts(self) -> Written:
        written = Written()
        for episode in self.episodes():
            written.add(episode)
        return written

    def text(self, name: str) -> str:
        provenance = self.metadata["drl_cli"] | self.counts().statistics()
        return json.dumps(self.metadata | {"drl_cli": provenance})

    @property
    def stamp(self) -> str:
        """A checksum of all arrays."""
        checksum = 0
        for stored in self._stored.values():
            checksum = zlib.crc32(stored.data, checksum)
        return str(checksum)

    def verify(self) -> None:
        """Do nothing, because `stamp` reads everything."""

    def _parts(self, kind: str) -> Columns:
        return {name.partition(".")[2]: stored for name, stored in self._stored.items() if _kind(name) == kind}


class DraftWriter:
    """Appends episodes to the draft in a folder. `written` has the counts of the episodes that were there before.

    A draft without an episode is removed at the end. Raise DatasetError if another process writes the draft, or if its
    episodes have other metadata.
    """

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self.folder, self.metadata = folder, json.loads(json.dumps(metadata))
        self._files: list[tuple[IO[bytes], np.dtype[Any]]] = []
        self._open = ExitStack()
        if not is_draft(folder):
            folder.mkdir()
            (folder / EPISODES).touch()
        try:
            self._open.enter_context(lock(folder / LOCK))
        except BlockingIOError as error:
            raise DatasetError(f"another process is writing {folder}; say another output") from error
        self._draft = None if self.is_empty else Draft(folder)
        self.written = Written() if self._draft is None else self._draft.counts()
        if self._draft is not None and self._draft.metadata != self.metadata:
            raise DatasetError(f"{folder} has the episodes of another command; remove it, or say another output")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._open:
            if self.folder.exists() and self.is_empty:
                self.remove()

    @property
    def is_empty(self) -> bool:
        return not self._index_bytes()

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def append(self, episode: Episode) -> None:
        """Write an episode. Once this returns, the episode is in the draft."""
        parts = ((OBS, episode.obs), (ACTION, episode.action))
        arrays = {f"{kind}.{path}".rstrip("."): part for kind, found in parts for path, part in found.items()}
        arrays |= zip(FLAGS, (episode.reward, episode.terminated, episode.truncated), strict=True)
        if not self._files:
            self._start(arrays)
        for (file, dtype), values in zip(self._files, arrays.values(), strict=True):
            file.write(np.ascontiguousarray(values, dtype).data)
            file.flush()
        line = {"steps": len(episode.reward), "seed": episode.seed, "is_whole": episode.is_whole}
        self._index.write(f"{json.dumps(line)}\n".encode())
        self._index.flush()

    def _start(self, arrays: Columns) -> None:
        """Open the files of the arrays. Remove what an interrupted process wrote after its last whole episode."""
        found = [[name, values.dtype.str, [*values.shape[1:]]] for name, values in arrays.items()]
        if self._draft is None:
            replace_file(self.folder / HEADER, json.dumps({METADATA: self.metadata, "arrays": found}).encode())
        elif self._draft.arrays != found:
            raise DatasetError(f"{self.folder} has the arrays {self._draft.arrays}, and this command {found}")
        for i, (name, values) in enumerate(arrays.items()):
            rows = 0 if self._draft is None else self._draft.rows(name)
            file = self._appended(f"{i}.bin", rows * values[:1].nbytes)
            self._files.append((file, values.dtype))
        self._index = self._appended(EPISODES, self._index_bytes())

    def _appended(self, name: str, size: int) -> IO[bytes]:
        file = self._open.enter_context((self.folder / name).open("ab"))
        file.truncate(size)
        return file

    def _index_bytes(self) -> int:
        return (self.folder / EPISODES).read_bytes().rfind(b"\n") + 1


def _kind(name: str) -> str:
    return name.partition(".")[0]
