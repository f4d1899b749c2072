"""Saving a replay table piece by piece into checkpoint folders: what has changed is written, the rest is linked."""

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.errors import CheckpointError
from drl_cli.replay.base import Table
from drl_cli.replay.snapshot import Snapshot, rows_per_chunk
from drl_cli.runtime.files.checkpoint import read_arrays, read_manifest, write_arrays
from drl_cli.runtime.files.replay_files import file_name
from drl_cli.types import State, nested, within
from drl_cli.utils.clock import now

CHUNK_BYTES = 4 << 20
"""Rows of a chunk file, roughly: what is written at once, and what is written again when one of them changes."""
PART_BYTES, PART_S = 8 << 20, 0.05
"""A part of a save ends with the chunk in which it reaches either."""
MARGIN_BYTES = 64 << 20
"""What has to stay free on the disk."""


@dataclass
class _Save:
    """A save that is under way: state and stamps of its moment, chunks still to be written, files that are there."""

    folder: Path
    state: State
    stamps: Sequence[int]
    chunks: list[int]
    snapshot: Snapshot
    sums: dict[str, str] = field(default_factory=dict)


class ReplaySaver:
    """Of one shard's table. A save is begun, written by `part` until that returns the files, or aborted.

    The table's rows go to `state.replay-<shard>.<chunk>.safetensors`, the rest to `state.replay-<shard>.safetensors`.
    """

    def __init__(self, table: Table, shard: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.table, self.shard = table, shard
        self.chunk_rows = rows_per_chunk(table.row_nbytes, chunk_bytes)
        self._saved: dict[str, tuple[int, str]] = {}  # chunk file -> stamp and sha256 when it was last saved or loaded
        self._save: _Save | None = None

    def begin(self, folder: Path, previous: Path | None, extra: State) -> int:
        """Save the table, as it is now, and `extra` into a folder; returns the bytes that are to be written, roughly.

        Chunks that the checkpoint `previous` has as they are now are linked to. Raises OSError (ENOSPC) when there is
        no room; nothing was written then. A save that is under way is aborted.
        """
        self.abort()
        store = self.table.store
        stamps, there = store.stamps(self.chunk_rows), _sums(previous)
        known: dict[int, str] = {}
        for chunk, stamp in enumerate(stamps):
            saved_stamp, sha256 = self._saved.get(self._name(chunk), (None, ""))
            if saved_stamp == stamp and there.get(self._name(chunk)) == sha256:
                known[chunk] = sha256
        state = self._header() | nested("table", self.table.state()) | extra
        rows = min(len(store), (len(stamps) - len(known)) * self.chunk_rows)
        needed = rows * self.table.row_nbytes + sum(array.nbytes for array in state.values())
        _check_room(folder, needed)
        linked = {
            chunk: sha256
            for chunk, sha256 in known.items()
            if previous is not None and _link(previous / self._name(chunk), folder / self._name(chunk))
        }
        changed = [chunk for chunk in range(len(stamps)) if chunk not in linked]
        next_chunk = store.inserts % store.capacity // self.chunk_rows
        changed.sort(key=lambda chunk: (chunk < next_chunk, chunk))  # what is overwritten first comes first
        self._save = _Save(folder, state, stamps, changed, Snapshot(store, self.chunk_rows, changed))
        self._save.sums.update({self._name(chunk): sha256 for chunk, sha256 in linked.items()})
        return needed

    def part(self) -> dict[str, str] | None:
        """Write the next files, synced: None when there are more, or else the sha256 of all files by name.

        Raises OSError when the disk is full or broken: abort then. Raises ValueError when no save was begun.
        """
        save, end, written = self._save, now() + PART_S, 0
        if save is None:
            raise ValueError("no save of the replay is under way")
        while save.chunks:
            chunk = save.chunks[0]
            written += self._write(save, self._name(chunk), self.table.pack(save.snapshot.take(chunk)))
            save.snapshot.let_go(save.chunks.pop(0))
            if written >= PART_BYTES or now() >= end:
                return None
        self._write(save, self._name(), save.state)
        self._saved = {self._name(i): (stamp, save.sums[self._name(i)]) for i, stamp in enumerate(save.stamps)}
        save.snapshot.close()
        self._save = None
        return save.sums

    def abort(self) -> None:
        """Forget a save that is under way, and remove its files; those of one that is done stay."""
        save, self._save = self._save, None
        if save is not None:
            save.snapshot.close()
            for name in [self._name(), *(self._name(chunk) for chunk in range(len(save.stamps)))]:
                (save.folder / name).unlink(missing_ok=True)

    def fits(self, state: State) -> bool:
        """Whether the table can go on exactly from this one: it is of the same kind and capacity."""
        is_like = within(state, "table").keys() == self.table.state().keys()
        return is_like and state["capacity"].item() == self.table.store.capacity

    def load(self, folder: Path, manifest: Mapping[str, Any], state: State) -> None:
        """Go on exactly from this shard's part of a checkpoint; the next save can link to its unchanged chunks.

        Raises CheckpointError for a file that is damaged, ValueError when the rows have other columns.
        """
        self.forget()
        num_chunks = -(-state["size"].item() // state["chunk_rows"].item())
        names = [self._name(chunk) for chunk in range(num_chunks)]
        self.table.load_state(within(state, "table"))
        self.table.store.fill(self.table.unpack(read_arrays(folder, name, manifest) for name in names))
        if state["chunk_rows"].item() == self.chunk_rows:
            stamps = self.table.store.stamps(self.chunk_rows)
            self._saved = {name: (stamp, manifest["sha256"][name]) for name, stamp in zip(names, stamps, strict=True)}

    def forget(self) -> None:
        """The table is another one from now on: no chunk of it was ever saved."""
        self.abort()
        self._saved = {}

    def _name(self, chunk: int | None = None) -> str:
        return file_name(self.shard, chunk)

    def _header(self) -> State:
        store = self.table.store
        numbers = {"capacity": store.capacity, "chunk_rows": self.chunk_rows, "size": len(store)}
        return {name: np.array(number) for name, number in numbers.items()}

    def _write(self, save: _Save, name: str, state: State) -> int:
        """Write one file; returns its bytes."""
        (save.folder / name).unlink(missing_ok=True)  # a link that is there leads to another checkpoint's file
        save.sums[name] = write_arrays(save.folder / name, state)
        return sum(array.nbytes for array in state.values())


def _sums(folder: Path | None) -> Mapping[str, str]:
    """The sha256 of a checkpoint's files; none where it was removed or damaged: nothing is linked to it then."""
    try:
        return {} if folder is None else read_manifest(folder)["sha256"]
    except CheckpointError:
        return {}


def _link(source: Path, target: Path) -> bool:
    """Have a file at two places; False where it is missing or its file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + MARGIN_BYTES > free:
        size, margin, rest = (f"{number / 2**20:.1f} MiB" for number in (needed, MARGIN_BYTES, free))
        raise OSError(errno.ENOSPC, f"the replay needs {size} and {margin} to spare, {rest} are free", str(folder))
