"""A table that stores rows with images, and each frame of these images only once."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from drl_cli.replay.base import Sampled, Table
from drl_cli.replay.frames import (
    FRAMES,
    UNIQUE,
    Codec,
    Stacking,
    image_columns,
    join_frames,
    make_codec,
    split_frames,
    worker_of,
)
from drl_cli.types import Array, Column, Columns, Schema, State, column_name, nested, within

CODEC = "frame_codec"
"""In a saved chunk, the array with this name contains the name of the codec."""


class FrameTable(Table):
    """Wraps a table whose rows contain references `[..., k]` to frames. A frame is freed with its last row.

    Rows and batches are equal to the rows and batches of a table that stores whole images. Successive blocks of a
    worker share frames only if both were inserted into this shard; otherwise each block stores its own copy of the
    frame. With `shares_frames`, batches contain each frame once, too (UNIQUE).
    """

    def __init__(
        self, table: Table, stackings: Mapping[str, Stacking], codec: Codec, shares_frames: bool = False
    ) -> None:
        super().__init__(table.store)
        self.table, self.stackings, self.codec, self.shares_frames = table, stackings, codec, shares_frames
        self.frame_size = sum(stacking.size for stacking in stackings.values())  # bytes, summed over image parts
        self.images = image_columns(stackings)
        self._last: dict[int, dict[int, bytes]] = {}  # frames of each worker's last block, by worker and id

    def __len__(self) -> int:
        return len(self.table)

    @property
    def inserts(self) -> int:
        return self.table.inserts

    def insert(self, columns: Columns, versions: Array) -> None:
        self.table.insert(self._to_references(columns), versions)

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        drawn = self.table.sample(num_batches, batch_size, version)
        if self.shares_frames:
            return replace(drawn, columns=self._to_unique(drawn.columns))
        columns = self._to_images(drawn.columns)
        if "valid" in columns:
            for name in self.images:
                columns[name][~columns["valid"]] = 0  # because the padding of windows repeats the last frames
        return replace(drawn, columns=columns)

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        self.table.update_priorities(row_ids, priorities)

    def write(self, row_ids: Array, columns: Columns) -> None:
        if images := sorted(columns.keys() & self.images.keys()):
            raise ValueError(f"images can't be changed: {', '.join(images)}")
        self.table.write(row_ids, columns)

    def stats(self) -> Mapping[str, float]:
        return self.table.stats()

    def contents(self) -> Columns:
        return self._to_images(self.table.contents())

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes, including the frames of all rows."""
        rows = self.table.contents()
        frames, _ = _indexed({name: rows[name] for name in self.images})
        return self.table.nbytes + sum(map(sys.getsizeof, frames))

    @property
    def row_nbytes(self) -> int:
        """Approximate size of a saved row in bytes, including one new frame of each image part."""
        return self.table.row_nbytes + (self.frame_size // 2 if self.codec.name == "lz4" else self.frame_size)

    def state(self) -> State:
        last = {i: frame for frames in self._last.values() for i, frame in frames.items()}
        frames = {"frame_id": np.array(list(last), np.int64), **join_frames(list(last.values()))}
        return self.table.state() | nested("last", frames)

    def load_state(self, state: State) -> None:
        self.table.load_state(state)
        last, self._last = within(state, "last"), {}
        for i, frame in zip(last["frame_id"].tolist(), split_frames(last), strict=True):
            self._last.setdefault(worker_of(i), {})[i] = frame

    def pack(self, rows: Columns) -> State:
        """Return arrays to save: each frame once, and the indices of each row's frames, int32 `[rows, ..., k]`."""
        frames, indices = _indexed({name: rows[name] for name in self.images})
        codec = np.frombuffer(self.codec.name.encode(), np.uint8)
        return self.table.pack(rows) | indices | join_frames(frames) | {CODEC: codec}

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        """Convert saved chunks to rows. Store equal frames once, and compress frames again if the codec differs."""
        known = {frame: frame for frames in self._last.values() for frame in frames.values()}
        for chunk in chunks:
            if CODEC not in chunk:
                raise ValueError("the saved replay holds whole images; this run's holds frames")
            frames, codec = split_frames(chunk), chunk[CODEC].tobytes().decode()
            if codec != self.codec.name:
                frames = self._repacked(frames, chunk, make_codec(codec))
            references = np.array([known.setdefault(frame, frame) for frame in frames], object)
            rows = {name: column for name, column in chunk.items() if name not in (*FRAMES, CODEC)}
            yield from self.table.unpack([rows | {name: references[rows[name]] for name in self.images}])

    def refill(self, rows: Columns) -> None:
        self.table.refill(rows)

    def _repacked(self, frames: list[bytes], chunk: State, codec: Codec) -> list[bytes]:
        sizes = np.zeros(len(frames), np.int64)
        for name, stacking in self.images.items():
            sizes[chunk[name]] = stacking.size
        pairs = zip(frames, sizes.tolist(), strict=True)
        return [self.codec.pack(codec.unpack([frame], size)[0]) for frame, size in pairs]

    def _to_references(self, block: Columns) -> Columns:
        """Replace frame ids by references to frames. Reuse equal frames of the worker's last block."""
        ids = block["frame_id"].tolist()
        frames: dict[int, bytes] = {}
        latest: dict[int, dict[int, bytes]] = defaultdict(dict)
        for i, frame in zip(ids, split_frames(block), strict=True):
            last = self._last.get(worker_of(i), {}).get(i)
            frames[i] = latest[worker_of(i)][i] = frame if last != frame else last
        self._last |= latest
        known = np.array(sorted(frames), np.int64)
        references = np.array([frames[i] for i in known.tolist()], object)
        rows = {name: column for name, column in block.items() if name not in FRAMES}
        return rows | {name: references[np.searchsorted(known, rows[name])] for name in self.images}

    def _to_images(self, rows: Columns) -> Columns:
        return rows | {name: self._images(stacking, rows[name]) for name, stacking in self.images.items()}

    def _to_unique(self, rows: Columns) -> Columns:
        """Replace references by indices int32 `[..., k]`, and add the frames of each image part once (UNIQUE)."""
        rows = dict(rows)
        for path, stacking in self.stackings.items():
            frames, indices = _indexed({name: rows[name] for name in image_columns({path: stacking})})
            rows |= indices | {column_name(UNIQUE, path): self.codec.unpack(frames, stacking.size)}
        return rows

    def _images(self, stacking: Stacking, references: Array) -> Array:
        flat = references.reshape(-1, stacking.k)
        images = np.empty((len(flat), *stacking.shape), np.uint8)
        for start in range(0, len(flat), 32):  # blocks that fit into the CPU cache are three times as fast
            some = flat[start : start + 32].T
            frames = [self.codec.unpack(packed.tolist(), stacking.size) for packed in some]
            stacking.join(frames, images[start : start + 32])
        return images.reshape(*references.shape[:-1], *stacking.shape)


def _indexed(columns: Columns) -> tuple[list[bytes], Columns]:
    flat = {name: column.ravel().tolist() for name, column in columns.items()}
    frames = {id(frame): frame for references in flat.values() for frame in references}
    index = {key: i for i, key in enumerate(frames)}
    indices = {
        name: np.array([index[id(frame)] for frame in flat[name]], np.int32).reshape(column.shape)
        for name, column in columns.items()
    }
    return list(frames.values()), indices


def reference_schema(schema: Schema, stackings: Mapping[str, Stacking]) -> Schema:
    """Return the columns of the table that a FrameTable wraps: image columns contain references to frames."""
    references = {name: Column((stacking.k,), "object") for name, stacking in image_columns(stackings).items()}
    return {**schema, **references}


def frame_bytes(stackings: Mapping[str, Stacking], capacity: int, compress: str) -> int:
    """Return an estimate of the memory [bytes] for the frames of `capacity` rows if episodes have at least 16 steps.

    Assume that compression halves the size of a frame. Each frame needs another 48 bytes for object and heap headers.
    """
    sizes = [stacking.size for stacking in stackings.values()]
    held = sum((size if compress == "none" else size // 2) + 48 for size in sizes)
    return held * (capacity + capacity // 16)
