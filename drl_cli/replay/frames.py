"""Frames of image observations: how a stack is made of them, and how one is kept as bytes, plain or compressed."""

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from drl_cli.types import Array, EnvSpec, FrameStack, column_name, leaves


class Stacking:
    """Observations of one shape and their k frames, which are flat here: `[size]`."""

    def __init__(self, shape: Sequence[int], stack: FrameStack) -> None:
        self.shape, self.k = tuple(shape), stack.k
        self.size = int(np.prod(shape)) // self.k
        outer = int(np.prod(shape[: stack.axis % len(shape)]))
        self._parts = (outer, self.k, self.size // outer)

    def split(self, obs: Array) -> Array:
        """Contiguous frames `[n, k, size]` of observations `[n, ...]`."""
        parts, frames = obs.reshape(len(obs), *self._parts), np.empty((len(obs), self.k, self.size), np.uint8)
        for j in range(self.k):
            frames[:, j] = parts[:, :, j].reshape(len(obs), self.size)
        return frames

    def join(self, frames: Sequence[Array], obs: Array) -> None:
        """Write k arrays of frames `[n, size]`, oldest first, to contiguous observations `[n, ...]`."""
        parts = obs.reshape(len(obs), *self._parts)
        for j, frame in enumerate(frames):
            parts[:, :, j] = frame.reshape(len(frame), self._parts[0], self._parts[2])


def make_stackings(spec: EnvSpec) -> dict[str, Stacking]:
    """How the images of an environment's observations are taken apart, by the path of each image part."""
    parts = leaves(spec.obs)
    return {path: Stacking(parts[path].shape, stack) for path, stack in spec.frame_stacks.items()}


def image_columns(stackings: Mapping[str, Stacking]) -> dict[str, Stacking]:
    """The same by column: each image part is two."""
    return {column_name(name, path): stackings[path] for name in ("obs", "next_obs") for path in stackings}


class Codec(Protocol):
    """How the bytes of a frame are kept: in the worker, on the way, and in the table; `name` is `replay.compress`."""

    name: str

    def pack(self, frame: Array) -> bytes:
        """The bytes of one frame."""

    def unpack(self, frames: Sequence[bytes], size: int) -> Array:
        """Frames `[n, size]`, uint8."""


class Plain:
    """As they are."""

    name = "none"

    def pack(self, frame: Array) -> bytes:
        return frame.tobytes()

    def unpack(self, frames: Sequence[bytes], size: int) -> Array:
        return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), size)


class Lz4(Plain):
    """Each frame compressed on its own; raises ModuleNotFoundError where the package is missing."""

    name = "lz4"

    def __init__(self) -> None:
        self.lz4: Any = importlib.import_module("lz4.block")  # Any: it has no types

    def pack(self, frame: Array) -> bytes:
        packed: bytes = self.lz4.compress(frame.tobytes(), store_size=False)
        return packed

    def unpack(self, frames: Sequence[bytes], size: int) -> Array:
        return super().unpack(list(map(partial(self.lz4.decompress, uncompressed_size=size), frames)), size)


def make_codec(compress: str) -> Codec:
    """The codec by `replay.compress`."""
    return Lz4() if compress == "lz4" else Plain()
