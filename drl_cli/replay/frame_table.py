"""A table of rows with images that holds each frame once, however many rows show it."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from drl_cli.replay.base import Sampled, Table
from drl_cli.replay.frame_builder import FRAMES, worker_of
from drl_cli.replay.frames import Codec, Stacking, image_columns, make_codec
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within

CODEC = "frame_codec"
"""The name of the codec of saved frames."""


class FrameTable:
    """Around any table: its rows hold references to frames, `[..., k]`; a frame goes with the last row that shows it.

    The table's rows, and so its batches, are those that it would have with whole images. Rows of two blocks share
    frames where a worker's last block came to this table too; where it went to another shard, they are here again.
    """

    def __init__(self, table: Table, stackings: Mapping[str, Stacking], codec: Codec) -> None:
        self.table, self.codec = table, codec
        self.frame_size = sum(stacking.size for stacking in stackings.values())  # of one frame of each image part
        self.images = image_columns(stackings)
        self._last: dict[int, dict[int, bytes]] = {}  # worker -> frames of its last block, by id

    def __len__(self) -> int:
        return len(self.table)

    @property
    def inserts(self) -> int:
        """Transitions that ever came in."""
        return self.table.inserts

    def insert(self, columns: Columns, versions: Array) -> None:
        """Take a FrameBuilder's block in, or several that were merged."""
        self.table.insert(self._to_references(columns), versions)

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        drawn = self.table.sample(num_batches, batch_size, version)
        return replace(drawn, columns=self._to_images(drawn.columns))

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        self.table.update_priorities(row_ids, priorities)

    def stats(self) -> Mapping[str, float]:
        return self.table.stats()

    def contents(self) -> Columns:
        return self._to_images(self.table.contents())

    @property
    def nbytes(self) -> int:
        """Allocated bytes, those of the stored rows' frames included."""
        rows = self.table.contents()
        frames = {id(frame): frame for name in self.images for frame in rows[name].flat}
        return self.table.nbytes + sum(map(sys.getsizeof, frames.values()))

    @property
    def store(self) -> RingStore:
        """The rows, with references."""
        return self.table.store

    @property
    def row_nbytes(self) -> int:
        """With one frame of each image, as long as most rows share the others with their neighbours."""
        return self.table.row_nbytes + (self.frame_size // 2 if self.codec.name == "lz4" else self.frame_size)

    def state(self) -> State:
        last = {i: frame for frames in self._last.values() for i, frame in frames.items()}
        frames = {"frame_id": np.array(list(last), np.int64), **_on_end(list(last.values()))}
        return self.table.state() | nested("last", frames)

    def load_state(self, state: State) -> None:
        self.table.load_state(state)
        last, self._last = within(state, "last"), {}
        for i, frame in zip(last["frame_id"].tolist(), _apart(last), strict=True):
            self._last.setdefault(worker_of(i), {})[i] = frame

    def pack(self, rows: Columns) -> State:
        """The frames of the rows, each once, and which of them a row shows, int32 `[rows, ..., k]`."""
        frames = {id(frame): frame for name in self.images for frame in rows[name].flat}
        index = {key: i for i, key in enumerate(frames)}
        numbers = {name: [index[id(frame)] for frame in rows[name].flat] for name in self.images}
        shown = {name: np.array(numbers[name], np.int32).reshape(rows[name].shape) for name in self.images}
        return self.table.pack(rows) | shown | _on_end(list(frames.values())) | {CODEC: _text(self.codec.name)}

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        """Equal frames become one object, over all chunks; those of another codec are packed anew."""
        known = {frame: frame for frames in self._last.values() for frame in frames.values()}
        for chunk in chunks:
            if CODEC not in chunk:
                raise ValueError(
                    "the saved replay holds no frames, as this run's does: its images are stored otherwise"
                )
            frames, codec = _apart(chunk), chunk[CODEC].tobytes().decode()
            if codec != self.codec.name:
                frames = self._repacked(frames, chunk, make_codec(codec))
            references = np.array([known.setdefault(frame, frame) for frame in frames], object)
            rows = {name: column for name, column in chunk.items() if name not in (*FRAMES, CODEC)}
            yield from self.table.unpack([rows | {name: references[rows[name]] for name in self.images}])

    def refill(self, rows: Columns) -> None:
        self.table.refill(rows)

    def _repacked(self, frames: list[bytes], chunk: State, codec: Codec) -> list[bytes]:
        """Frames that another codec packed."""
        sizes = np.zeros(len(frames), np.int64)
        for name, stacking in self.images.items():
            sizes[chunk[name]] = stacking.size
        pairs = zip(frames, sizes.tolist(), strict=True)
        return [self.codec.pack(codec.unpack([frame], size)[0]) for frame, size in pairs]

    def _to_references(self, block: Columns) -> Columns:
        """Rows with references for ids, to a frame of the worker's last block where that has the same."""
        ids = block["frame_id"].tolist()
        frames: dict[int, bytes] = {}
        latest: dict[int, dict[int, bytes]] = defaultdict(dict)
        for i, frame in zip(ids, _apart(block), strict=True):
            last = self._last.get(worker_of(i), {}).get(i)
            frames[i] = latest[worker_of(i)][i] = frame if last != frame else last
        self._last |= latest
        known = np.array(sorted(frames), np.int64)
        references = np.array([frames[i] for i in known.tolist()], object)
        rows = {name: column for name, column in block.items() if name not in FRAMES}
        return rows | {name: references[np.searchsorted(known, rows[name])] for name in self.images}

    def _to_images(self, rows: Columns) -> Columns:
        return rows | {name: self._images(stacking, rows[name]) for name, stacking in self.images.items()}

    def _images(self, stacking: Stacking, references: Array) -> Array:
        """Fresh contiguous uint8 images `[..., *shape]` of references `[..., k]`."""
        flat = references.reshape(-1, stacking.k)
        images = np.empty((len(flat), *stacking.shape), np.uint8)
        for start in range(0, len(flat), 32):  # in pieces that the processor's cache holds: three times as fast
            some = flat[start : start + 32].T
            frames = [self.codec.unpack(packed.tolist(), stacking.size) for packed in some]
            stacking.join(frames, images[start : start + 32])
        return images.reshape(*references.shape[:-1], *stacking.shape)


def _on_end(frames: Sequence[bytes]) -> State:
    """The columns of so many frames."""
    sizes = np.array([len(frame) for frame in frames], np.int32)
    return {"frame_size": sizes, "frames": np.frombuffer(b"".join(frames), np.uint8)}


def _apart(columns: Columns) -> list[bytes]:
    """The inverse of `_on_end`."""
    ends, data = np.cumsum(columns["frame_size"]).tolist(), columns["frames"].data
    return [bytes(data[start:end]) for start, end in pairwise([0, *ends])]


def _text(text: str) -> Array:
    return np.frombuffer(text.encode(), np.uint8)


def reference_schema(schema: Schema, stackings: Mapping[str, Stacking]) -> Schema:
    """The columns of a row of the table that a FrameTable is put around."""
    references = {name: Column((stacking.k,), "object") for name, stacking in image_columns(stackings).items()}
    return {**schema, **references}


def frame_bytes(stackings: Mapping[str, Stacking], capacity: int, compress: str) -> int:
    """Bytes of the frames of so many rows, with room for those that begin episodes of 16 steps or more.

    Shorter ones take more. Compressed frames are counted as half their size. Each frame has 48 bytes besides: the
    object's and the heap's header.
    """
    sizes = [stacking.size for stacking in stackings.values()]
    held = sum((size if compress == "none" else size // 2) + 48 for size in sizes)
    return held * (capacity + capacity // 16)
