"""The files of a saved replay: name them, read the states of all shards, and fill a table of another kind or size."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.errors import CheckpointError
from drl_cli.replay.base import Table
from drl_cli.runtime.files.checkpoint import read_arrays
from drl_cli.types import Columns, State


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
