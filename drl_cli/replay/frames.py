"""Split stacked image observations into frames, and store frames as bytes, with or without compression."""

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from drl_cli.types import Array, Columns, EnvSpec, FrameStack, State, column_name, leaves

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
        """Return observations `[*n, *shape]` of their frames `[*n, k, size]`."""
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
    """Return the packed frames as a list: the inverse of `join_frames`."""
    ends, data = np.cumsum(columns["frame_size"]).tolist(), columns["frames"].data
    return [bytes(data[start:end]) for start, end in pairwise([0, *ends])]


class Codec:
    """Packs frames into bytes in workers, and unpacks them for batches. This class does not compress."""

    name = "none"
    """The value of `replay.compress` that chooses this codec."""

    def pack(self, frame: Array) -> bytes:
        return frame.tobytes()

    def unpack(self, frames: Sequence[bytes], size: int) -> Array:
        """Return packed frames as an array `[n, size]`, uint8."""
        return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), size)


class Lz4(Codec):
    """Compresses each frame with lz4. The constructor raises ModuleNotFoundError if the package is missing."""

    name = "lz4"

    def __init__(self) -> None:
        self.lz4: Any = importlib.import_module("lz4.block")  # Any: lz4 has no types

    def pack(self, frame: Array) -> bytes:
        packed: bytes = self.lz4.compress(frame.tobytes(), store_size=False)
        return packed

    def unpack(self, frames: Sequence[bytes], size: int) -> Array:
        return super().unpack(list(map(partial(self.lz4.decompress, uncompressed_size=size), frames)), size)


def make_codec(compress: str | None) -> Codec:
    """Return the codec for a value of `replay.compress`; None does not compress."""
    return Lz4() if compress == "lz4" else Codec()
