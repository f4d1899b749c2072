"""Save a replay table piece by piece, linking the chunks that have not changed, and read the files again."""

import errno
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.errors import CheckpointError
from drl_cli.replay.base import Table
from drl_cli.replay.store import Snapshot, rows_per_chunk
from drl_cli.run_folder.checkpoint import read_arrays, read_manifest, write_arrays
from drl_cli.types import Columns, State, nested, within
from drl_cli.utils.clock import now
from drl_cli.utils.files import link

CHUNK_BYTES = 4 << 20
"""The approximate size of a chunk file. A chunk is written again if one of its rows has changed."""
PART_BYTES, PART_S = 8 << 20, 0.05
"""A call of `part` ends once it has written this many bytes or has run for this time [s]."""
MARGIN_BYTES = 64 << 20
"""The space that must stay free on the disk."""


@dataclass
class _Save:
    """A running save. `stamps` counts the rows ever written to each chunk. `chunks` lists the chunks left to write."""

    folder: Path
    state: State
    stamps: Sequence[int]
    chunks: list[int]
    snapshot: Snapshot
    sums: dict[str, str]


class ReplaySaver:
    """Saves the table of one shard. Call `begin`, then `part` until it returns a dict. `abort` ends a save early.

    The rows are saved in `state.replay-<shard>.<chunk>.safetensors`, everything else in
    `state.replay-<shard>.safetensors`.
    """

    def __init__(self, table: Table, shard: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.table, self.shard = table, shard
        self.chunk_rows = rows_per_chunk(table.row_nbytes, chunk_bytes)
        self._saved: dict[str, tuple[int, str]] = {}  # by file: stamp and sha256 at its last save or load
        self._save: _Save | None = None

    def begin(self, folder: Path, previous: Path | None, extra: State) -> int:
        """Begin to save the present table and `extra` to a folder. Return the approximate number of bytes to write.

        Chunks that have not changed since the checkpoint `previous` become links to its files. A running save is
        aborted. Raise OSError (ENOSPC) before anything is written if the disk has too little space.
        """
        self.abort()
        store = self.table.store
        stamps, sums = store.stamps(self.chunk_rows), _sums(previous)
        names = [self._name(chunk) for chunk in range(len(stamps))]
        saved = zip(names, stamps, strict=True)
        unchanged = [name for name, stamp in saved if self._saved.get(name) == (stamp, sums.get(name))]
        state = self._header() | nested("table", self.table.state()) | extra
        rows = min(len(store), (len(stamps) - len(unchanged)) * self.chunk_rows)
        needed = rows * self.table.row_nbytes + sum(array.nbytes for array in state.values())
        if needed + MARGIN_BYTES > (free := shutil.disk_usage(folder).free):
            size, margin, rest = (f"{number / 2**20:.1f} MiB" for number in (needed, MARGIN_BYTES, free))
            raise OSError(errno.ENOSPC, f"the replay needs {size} and {margin} to spare, {rest} are free", str(folder))
        linked = {n: sums[n] for n in unchanged if previous is not None and link(previous / n, folder / n)}
        changed = [chunk for chunk, name in enumerate(names) if name not in linked]
        next_chunk = store.inserts % store.capacity // self.chunk_rows
        changed.sort(key=lambda chunk: (chunk < next_chunk, chunk))  # the chunk that is overwritten next comes first
        self._save = _Save(folder, state, stamps, changed, Snapshot(store, self.chunk_rows, changed), linked)
        return needed

    def part(self) -> dict[str, str] | None:
        """Write and sync the next files. Return None if files are left, or the sha256 of all files by name at the end.

        Raise OSError if the disk is full or broken; the caller must then call `abort`. Raise ValueError if no save is
        running.
        """
        save, end, written = self._save, now() + PART_S, 0
        if save is None:
            raise ValueError("no save of the replay is running")
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
        """Abort the running save, if any, and remove its files. The files of finished saves stay."""
        save, self._save = self._save, None
        if save is not None:
            save.snapshot.close()
            for name in [self._name(), *(self._name(chunk) for chunk in range(len(save.stamps)))]:
                (save.folder / name).unlink(missing_ok=True)

    def fits(self, state: State) -> bool:
        """Return whether the state is from a table of the same kind and capacity, so that it can be loaded exactly."""
        is_like = within(state, "table").keys() == self.table.state().keys()
        return is_like and state["capacity"].item() == self.table.store.capacity

    def load(self, folder: Path, manifest: Mapping[str, Any], state: State) -> None:
        """Continue exactly from this shard's part of a checkpoint. The next save can then link to the unchanged chunks.

        Raise CheckpointError if a file is damaged. Raise ValueError if the columns differ.
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
        self.abort()
        self._saved = {}

    def _name(self, chunk: int | None = None) -> str:
        return file_name(self.shard, chunk)

    def _header(self) -> State:
        store = self.table.store
        numbers = {"capacity": store.capacity, "chunk_rows": self.chunk_rows, "size": len(store)}
        return {name: np.array(number) for name, number in numbers.items()}

    def _write(self, save: _Save, name: str, state: State) -> int:
        (save.folder / name).unlink(missing_ok=True)  # writing through an existing link would change another checkpoint
        save.sums[name] = write_arrays(save.folder / name, state)
        return sum(array.nbytes for array in state.values())


def _sums(folder: Path | None) -> Mapping[str, str]:
    try:
        return {} if folder is None else read_manifest(folder)["sha256"]
    except CheckpointError:
        return {}


def file_name(shard: int, chunk: int | None = None) -> str:
    """Return the name of the file with a shard's state or, if `chunk` is given, with one chunk of the shard's rows."""
    return f"state.replay-{shard}{'' if chunk is None else f'.{chunk:05d}'}.safetensors"


def read_states(folder: Path, manifest: Mapping[str, Any]) -> list[State]:
    """Return each shard's state without its rows. Raise CheckpointError if a file is missing or damaged."""
    states: list[State] = []
    while file_name(len(states)) in manifest["sha256"]:
        states.append(read_arrays(folder, file_name(len(states)), manifest))
    if not states:
        raise CheckpointError(f"{folder} was saved without the replay (checkpoint.replay=off, or the disk was full)")
    return states


def refill(
    table: Table, shard: int, num_shards: int, folder: Path, manifest: Mapping[str, Any], states: Sequence[State]
) -> None:
    """Fill one shard's table with its share of the saved rows of all shards, the oldest rows first.

    This is used if the kind of table, its capacity or the number of shards has changed. The saved rows are inserted as
    new rows: their row ids, priorities and parameter versions are lost. The table's counts, the sampler's beta and the
    random state are lost, too. A smaller table loses the oldest rows. A fifo-once table stays empty. Raise ValueError
    if the columns differ.
    """
    pieces = _oldest_first(states)
    chunks = (read_arrays(folder, file_name(saved, chunk), manifest) for saved, chunk, _ in pieces)
    for rows, (_, _, piece) in zip(table.unpack(chunks), pieces, strict=True):
        bounds = piece.start + (piece.stop - piece.start) * np.arange(num_shards + 1) // num_shards
        mine = slice(*bounds[shard : shard + 2].tolist())
        if mine.stop > mine.start:
            table.refill({name: column[mine] for name, column in rows.items()})


def saved_rows(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Columns]:
    """Yield the packed rows of all shards in pieces, the oldest rows first. Raise CheckpointError as `read_states`."""
    for shard, chunk, piece in _oldest_first(read_states(folder, manifest)):
        yield {name: column[piece] for name, column in read_arrays(folder, file_name(shard, chunk), manifest).items()}


def has_lost_rows(states: Sequence[State]) -> bool:
    """Return whether a table has overwritten rows, given the states of all shards."""
    return any(state["table.store.inserts"].item() > state["size"].item() for state in states)


def _oldest_first(states: Sequence[State]) -> list[tuple[int, int, slice]]:
    """Return (shard, chunk, slice of the chunk) for all saved rows, the oldest rows first.

    A chunk that contains both the newest and the oldest rows is split in two. In a table that overwrites rows at
    random, every chunk has rows of all ages, and the chunks keep their order.
    """
    pieces: list[tuple[int, int, int, slice]] = []
    for shard, state in enumerate(states):
        size, step, inserts = (state[name].item() for name in ("size", "chunk_rows", "table.store.inserts"))
        is_ring = "table.store.numbers" not in state
        oldest = inserts % size if is_ring and size == state["capacity"].item() else 0
        for start, stop in pairwise(sorted({*range(0, size, step), oldest, size})):
            chunk, number = start // step, inserts - size + (start - oldest) % size
            pieces.append((number, shard, chunk, slice(start - chunk * step, stop - chunk * step)))
    return [piece[1:] for piece in sorted(pieces, key=lambda piece: piece[:2])]
