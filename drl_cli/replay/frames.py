"""Image stacks: workers split them into frames, of which each is sent once; batches of stacks are joined when read."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.replay.builders import Builder
from drl_cli.types import Array, Columns, EnvSpec, FrameStack, State, column_name, leaves, map_parts, nested, within
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


UNIQUE = "unique_frames"
"""Columns with this name, or UNIQUE.<path>, contain each frame of an image part in a batch once, uint8 `[F, size]`.

The image columns of such a batch contain the indices of their frames, int32 `[..., k]`.
"""


class Stacking:
    """Splits observations of one shape into their k flat frames `[size]`, and joins frames to observations."""

    def __init__(self, shape: Sequence[int], stack: FrameStack) -> None:
        self.shape, self.k = tuple(shape), stack.k
        self.size = int(np.prod(shape)) // self.k
        outer = int(np.prod(shape[: stack.axis % len(shape)]))
        self._parts = (outer, self.k, self.size // outer)

    def split(self, obs: Array) -> Array:
        """Return contiguous frames `[n, k, size]` of observations `[n, ...]`."""
        parts, frames = obs.reshape(len(obs), *self._parts), np.empty((len(obs), self.k, self.size), np.uint8)
        for j in range(self.k):
            frames[:, j] = parts[:, :, j].reshape(len(obs), self.size)
        return frames

    def joined(self, frames: Any) -> Any:  # Any: numpy or torch
        (outer, k, size), lead = self._parts, frames.shape[:-2]
        return frames.reshape(*lead, k, outer, size).swapaxes(-3, -2).reshape(*lead, *self.shape)

    def join(self, frames: Sequence[Array], obs: Array) -> None:
        """Write k arrays of frames `[n, size]`, the oldest first, into the contiguous array `obs` `[n, ...]`."""
        parts = obs.reshape(len(obs), *self._parts)
        for j, frame in enumerate(frames):
            parts[:, :, j] = frame.reshape(len(frame), self._parts[0], self._parts[2])


def make_stackings(spec: EnvSpec) -> dict[str, Stacking]:
    """Return the Stacking of each image part of the observations, by path."""
    parts = leaves(spec.obs)
    return {path: Stacking(parts[path].shape, stack) for path, stack in spec.frame_stacks.items()}


def image_columns(stackings: Mapping[str, Stacking]) -> dict[str, Stacking]:
    """Return the Stacking of each image column: `obs` and `next_obs` of each image part."""
    return {column_name(name, path): stackings[path] for name in ("obs", "next_obs") for path in stackings}


def is_unique(name: str) -> bool:
    """Return whether a batch's column has each frame once, so that its length is not the number of rows."""
    return name.partition(".")[0] == UNIQUE


def batch_part(columns: Columns, part: slice) -> Columns:
    """Return some rows of batches `[U, B, ...]` as contiguous arrays, with only the frames that these rows need."""
    rows = {n: np.ascontiguousarray(column[:, part]) for n, column in columns.items() if not is_unique(n)}
    for name in filter(is_unique, columns):
        images = [column_name(each, name.partition(".")[2]) for each in ("obs", "next_obs")]
        needed = np.unique(np.concatenate([rows[image].ravel() for image in images]))
        rows |= {image: np.searchsorted(needed, rows[image]).astype(np.int32) for image in images}
        rows[name] = columns[name][needed]
    return rows


def join_frames(frames: Sequence[bytes]) -> State:
    """Return the sizes of packed frames and their concatenated bytes, as two arrays."""
    sizes = np.array([len(frame) for frame in frames], np.int32)
    return {"frame_size": sizes, "frames": np.frombuffer(b"".join(frames), np.uint8)}


def split_frames(columns: Columns) -> list[bytes]:
    ends, data = np.cumsum(columns["frame_size"]).tolist(), columns["frames"].data
    return [bytes(data[start:end]) for start, end in pairwise([0, *ends])]


class Codec:
    """Packs frames into bytes in workers, and unpacks them for batches.

    `name` is the value of `replay.compress`. With "lz4", the constructor raises ModuleNotFoundError if the package is
    missing.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lz4: Any = importlib.import_module("lz4.block") if name == "lz4" else None  # Any: lz4 has no types

    def pack(self, frame: Array) -> bytes:
        data = frame.tobytes()
        return data if self._lz4 is None else self._lz4.compress(data, store_size=False)

    def unpack(self, frames: Sequence[bytes], size: int) -> Array:
        """Return packed frames as an array `[n, size]`, uint8."""
        if self._lz4 is not None:
            frames = list(map(partial(self._lz4.decompress, uncompressed_size=size), frames))
        return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), size)


def make_codec(compress: str | None) -> Codec:
    return Codec(compress or "none")


FRAMES = ("frame_id", "frame_size", "frames")
"""Columns that a block has in addition to the columns of its rows: the ids, sizes and bytes of its frames.

There is one id and one size [bytes] per frame. If blocks are merged, these columns are concatenated, like all columns.
"""


class FrameBuilder(Builder):
    """Gives an id to each frame, builds rows with frame ids int64 `[rows, ..., k]`, and adds the frames to each block.

    `stackings` has the Stacking of each image part by path; columns without images stay unchanged. Successive
    observations are compared by content to find the frames that they share, so the images of a row are always exact. A
    block contains all frames of its rows. A frame that was also in the worker's last block keeps its id. The ids 0, 1,
    ... are reserved for all-zero frames, one for each image part. The function `builder.prioritize` gets whole images.

    Rows that are not complete yet contain no step older than the latest `open_steps` steps.
    """

    def __init__(
        self,
        builder: Builder,
        stackings: Mapping[str, Stacking],
        codec: Codec,
        worker: int,
        incarnation: int,
        open_steps: int,
    ) -> None:
        self.builder, self.codec, self.prioritize = builder, codec, builder.prioritize
        if self.prioritize is not None:
            builder.prioritize = self._rated
        self.columns = image_columns(stackings)
        self.parts = {path: _ImagePart(stacking, black) for black, (path, stacking) in enumerate(stackings.items())}
        self._next_id = ((worker + 1) << 16 | incarnation) << 32
        self._black = {part.black: codec.pack(np.zeros(part.stacking.size, np.uint8)) for part in self.parts.values()}
        self._packed = dict(self._black)
        self._open: deque[Array] = deque(maxlen=open_steps)

    def append(self, step: Columns) -> None:
        ids = {
            name: part.encode(step[name], self._new)
            for path, part in self.parts.items()
            for name in (column_name("obs", path), column_name("next_obs", path))
        }
        self._open.append(np.concatenate([each.ravel() for each in ids.values()]))
        self.builder.append({**step, **ids})

    @property
    def open_rows(self) -> int:
        return self.builder.open_rows

    def take(self) -> Columns:
        rows = self.builder.take()
        ids = np.unique(np.concatenate([rows[name].ravel() for name in self.columns]))
        packed = [self._packed[i] for i in ids.tolist()]
        latest = np.concatenate([*(part.ids.ravel() for part in self.parts.values()), *self._open])
        self._packed = self._black | {i: self._packed[i] for i in set(latest.tolist())}
        return {**rows, "frame_id": ids, **join_frames(packed)}

    def state(self) -> State:
        ids = {"next_id": np.array([self._next_id]), "frame_id": np.array(list(self._packed))}
        state = ids | join_frames(list(self._packed.values()))
        for path, part in self.parts.items():
            if part.obs is not None:
                state |= {column_name("obs", path): part.obs.copy(), column_name("ids", path): part.ids.copy()}
        if self._open:
            state["open"] = np.stack(self._open)
        return state | nested("builder", self.builder.state())

    def load_state(self, state: State) -> None:
        self._next_id = int(state["next_id"].item())
        self._packed = dict(zip(state["frame_id"].tolist(), split_frames(state), strict=True))
        self._open = deque(state.get("open", ()), self._open.maxlen)
        for path, part in self.parts.items():
            if (name := column_name("obs", path)) in state:
                part.load(state[name], state[column_name("ids", path)].copy())
        self.builder.load_state(within(state, "builder"))

    def _rated(self, rows: Columns) -> Array:
        assert self.prioritize is not None
        images = {name: self._images(stacking, rows[name]) for name, stacking in self.columns.items()}
        return self.prioritize(rows | images)

    def _images(self, stacking: Stacking, ids: Array) -> Array:
        """Return images `[..., *shape]` from the ids `[..., k]` of their frames."""
        known, index = np.unique(ids, return_inverse=True)
        frames = self.codec.unpack([self._packed[i] for i in known.tolist()], stacking.size)
        flat = index.reshape(-1, stacking.k)
        images = np.empty((len(flat), *stacking.shape), np.uint8)
        stacking.join([frames[each] for each in flat.T], images)
        return images.reshape(*ids.shape[:-1], *stacking.shape)

    def _new(self, frame: Array) -> int:
        self._next_id += 1
        self._packed[self._next_id] = self.codec.pack(frame)
        return self._next_id


class _ImagePart:
    """The last observations of one image part in E environments, and the ids `[E, k]` of their frames."""

    def __init__(self, stacking: Stacking, black: int) -> None:
        self.stacking, self.black = stacking, black
        self.obs: Array | None = None

    def load(self, obs: Array, ids: Array) -> None:
        self.obs, self.ids, self._frames = obs, ids, self.stacking.split(obs)

    def encode(self, obs: Array, new: Callable[[Array], int]) -> Array:
        """Return the ids `[E, k]` of the frames of the next observations `[E, ...]`.

        A frame keeps its id if the last observation had the same frame one position later. A frame that equals the
        frame before it in the stack gets that frame's id. Every other frame gets an id from `new`.
        """
        if self.obs is None:  # the first observations follow all-zero frames
            self.load(np.zeros_like(obs), np.full((len(obs), self.stacking.k), self.black))
        changed = np.flatnonzero((obs != self.obs).reshape(len(obs), -1).any(1))
        frames, last, last_ids = self.stacking.split(obs[changed]), self._frames[changed], self.ids[changed]
        follows = (frames[:, :-1] == last[:, 1:]).all(-1)
        repeats = (frames[:, 1:] == frames[:, :-1]).all(-1)
        ids = np.empty(frames.shape[:2], np.int64)
        for i, j in np.ndindex(ids.shape):
            if j + 1 < ids.shape[1] and follows[i, j]:
                ids[i, j] = last_ids[i, j + 1]
            else:
                ids[i, j] = ids[i, j - 1] if j > 0 and repeats[i, j - 1] else new(frames[i, j])
        self.obs = obs
        self._frames[changed], self.ids[changed] = frames, ids
        return self.ids.copy()


def worker_of(frame_id: int) -> int:
    """Return 1 + the index of the worker that assigned a frame id, or 0 for an all-zero frame."""
    return frame_id >> 48


class Stacks:
    """A column of image stacks `[*n, *shape]`: frames, uint8 `[F, size]`, and the frames' indices, int32 `[*n, k]`.

    Indexing chooses rows and copies no frame. `joined` returns the stacks.
    """

    def __init__(self, frames: Tensor, index: Tensor, stacking: Stacking) -> None:
        self.frames, self.index, self.stacking = frames, index, stacking

    def __getitem__(self, rows: Any) -> Stacks:  # Any: indices, a mask or a slice
        return Stacks(self.frames, self.index[rows], self.stacking)

    def joined(self) -> Tensor:
        frames = torch.index_select(self.frames, 0, self.index.flatten())
        stacks: Tensor = self.stacking.joined(frames.view(*self.index.shape, -1))
        return stacks


class FrameBatch(MutableMapping[str, Any]):
    """A batch whose `columns` may be `Stacks`, or dicts with Stacks. Reading a column joins its stacks, every time."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = dict(columns)

    def __getitem__(self, name: str) -> Any:  # Any: a tensor, or a dict of tensors
        return map_parts(lambda part: part.joined() if isinstance(part, Stacks) else part, self.columns[name])

    def __setitem__(self, name: str, column: Any) -> None:
        self.columns[name] = column

    def __delitem__(self, name: str) -> None:
        del self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __or__(self, other: Mapping[str, Any]) -> FrameBatch:
        return FrameBatch(self.columns | unjoined(other))


def unjoined(batch: Mapping[str, Any]) -> dict[str, Any]:
    return dict(batch.columns if isinstance(batch, FrameBatch) else batch)


def like(batch: Mapping[str, Any], columns: dict[str, Any]) -> MutableMapping[str, Any]:
    """Return columns as a batch of the same kind as `batch`: a FrameBatch or a dict."""
    return FrameBatch(columns) if isinstance(batch, FrameBatch) else columns


def take(batch: Mapping[str, Any], rows: Any) -> MutableMapping[str, Any]:  # Any: indices, a mask or a slice
    """Return the rows of a batch with these indices. Only reading a column of the result joins its stacks."""
    return like(batch, map_parts(lambda column: column[rows], unjoined(batch)))
