"""TrajectoryManager: has one replay table and answers insert, sample, update_priorities, save and load."""

import time
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.replay.base import Table
from drl_cli.replay.frames import batch_part
from drl_cli.run_folder.replay_files import CHUNK_BYTES, ReplaySaver, read_states, refill
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch, UpdatePriority
from drl_cli.runtime.roles.normalization import Layout
from drl_cli.types import Columns
from drl_cli.utils.moments import RunningMoments


class TrajectoryManager:
    """Inserts blocks of rows and returns batches in equal parts, one part for each trainer.

    With a `layout`, the manager also computes the moments of all inserted rows, for the trainer's normalisation. The
    stored rows are not normalised. Unless `trainers_write`, trainers get ids only with priorities.
    """

    def __init__(
        self,
        table: Table,
        shard: int = 0,
        layout: Layout | None = None,
        num_shards: int = 1,
        chunk_bytes: int = CHUNK_BYTES,
        trainers_write: bool = True,
    ) -> None:
        self.trainers_write = trainers_write
        self.table, self.shard, self.layout, self.num_shards = table, shard, layout, num_shards
        self.saver = ReplaySaver(table, shard, chunk_bytes)
        self.moments = None if layout is None else RunningMoments.empty(layout.size)
        self.last_block: dict[tuple[int, int], int] = {}

    def insert(self, messages: Sequence[InsertTransition], *columns: Columns) -> None:
        """Insert the rows of each message in this order. Raise ValueError if a block is repeated."""
        for message, rows in zip(messages, columns, strict=True):
            blocks = message.blocks
            for block in blocks:
                if block.number <= self.last_block.get((block.worker, block.incarnation), -1):
                    raise ValueError(f"block {block.number} of worker {block.worker} was inserted before")
            self.table.insert(rows, np.repeat([block.version for block in blocks], [block.rows for block in blocks]))
            if self.layout is not None and self.moments is not None:
                self.moments = self.moments.merge(self.layout.moments(rows))
            self.last_block |= {(block.worker, block.incarnation): block.number for block in blocks}

    def sample(self, message: SampleBatch) -> list[BatchTrainingData | Columns]:
        """Return a header and new columns `[U, B / num_trainers, ...]`, a slice of each batch, for each trainer."""
        started = time.perf_counter()
        drawn = self.table.sample(message.num_batches, message.batch_size, message.version)
        size, stats = message.batch_size // message.num_trainers, dict(self.table.stats())
        if self.moments is not None:
            stats["normalizer_count"] = self.moments.count
        seconds = time.perf_counter() - started
        row_ids = drawn.row_ids if self.trainers_write or "weight" in drawn.columns else None
        parts: list[BatchTrainingData | Columns] = []
        for trainer in range(message.num_trainers):
            part = slice(trainer * size, (trainer + 1) * size)
            header = BatchTrainingData(
                num_batches=drawn.num_batches,
                row_ids=None if row_ids is None else row_ids[:, part],
                needs_priorities="weight" in drawn.columns,
                waiting=drawn.waiting,
                repeats=drawn.repeats,
                stats=stats,
                version=message.version,
                env_steps=message.env_steps,
                shard=self.shard,
                moments=self.moments,
                seconds=seconds,
            )
            columns = drawn.columns
            if message.num_trainers > 1:
                columns = batch_part(columns, part)
            parts += [header, columns]
        return parts

    def draw(self, message: SampleBatch) -> tuple[BatchTrainingData, Columns]:
        """Return a header with the ids of rows, and their observations `[U, B, ...]`, for a re-analyser."""
        started = time.perf_counter()
        drawn = self.table.sample(message.num_batches, message.batch_size, message.version)
        header = BatchTrainingData(
            num_batches=drawn.num_batches,
            row_ids=drawn.row_ids,
            version=message.version,
            env_steps=message.env_steps,
            shard=self.shard,
            seconds=time.perf_counter() - started,
        )
        return header, {name: column for name, column in drawn.columns.items() if name.partition(".")[0] == "obs"}

    def update_priorities(self, message: UpdatePriority | None) -> None:
        """Set new priorities and columns of rows. The message is None if all updates were skipped."""
        if message is not None and message.priorities is not None:
            self.table.update_priorities(message.row_ids, message.priorities)
        if message is not None and message.columns:
            self.table.write(message.row_ids, message.columns)

    def contents(self) -> Columns:
        return self.table.contents()

    def begin_save(self, folder: str, previous: str | None) -> int:
        """Begin to save the present state to a folder. Return the approximate number of bytes to write.

        Files that have not changed are linked from `previous`, the last complete checkpoint. Raise OSError (ENOSPC) if
        the disk has too little space.
        """
        blocks = np.array([(*key, number) for key, number in self.last_block.items()], np.int64).reshape(-1, 3)
        state = {"blocks": blocks} | ({} if self.moments is None else {"moments": self.moments.packed()})
        return self.saver.begin(Path(folder), None if previous is None else Path(previous), state)

    def save_part(self) -> dict[str, str] | None:
        """Write files for about 50 ms. Return None if files are left, or the sha256 of all files by name at the end.

        Raise OSError if the disk fails.
        """
        return self.saver.part()

    def abort_save(self) -> None:
        self.saver.abort()

    def load(self, folder: str, manifest: Mapping[str, Any]) -> int:  # Any: json
        """Load a checkpoint and return the number of stored rows.

        The state is restored exactly if the number of shards, the kind of table and its capacity have not changed.
        Otherwise, `refill` inserts the saved rows again. Raise CheckpointError if a file is missing or damaged. Raise
        ValueError if the saved rows have other columns.
        """
        path = Path(folder)
        saved = read_states(path, manifest)
        own = saved[self.shard :: self.num_shards]
        if len(saved) == self.num_shards and self.saver.fits(*own):
            self.saver.load(path, manifest, *own)
            blocks = own[0]["blocks"]
        else:
            self.saver.forget()
            refill(self.table, self.shard, self.num_shards, path, manifest, saved)
            blocks = np.concatenate([state["blocks"] for state in saved])
        self.last_block = {}
        for worker, incarnation, number in blocks.tolist():
            self.last_block[worker, incarnation] = max(number, self.last_block.get((worker, incarnation), -1))
        if self.layout is not None:
            moments = [RunningMoments.unpacked(state["moments"]) for state in own if "moments" in state]
            self.moments = reduce(RunningMoments.merge, moments or [RunningMoments.empty(self.layout.size)])
        return len(self.table)
