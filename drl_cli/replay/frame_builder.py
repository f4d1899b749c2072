"""From image observations to frames: around any builder of rows, in the worker."""

from collections import deque
from itertools import pairwise

import numpy as np

from drl_cli.replay.builders import Builder, Rate
from drl_cli.replay.frames import IMAGES, Codec, Stacking
from drl_cli.types import Array, Columns, State, nested, within

FRAMES = ("frame_id", "frame_size", "frames")
"""Columns of a block besides its rows: ids and sizes [bytes] of their frames `[F]`, and the bytes of all on end.

Such blocks are merged as all are, by concatenating each column.
"""

BLACK = 0
"""The id of the frame that is all zero, whoever has it."""


class FrameBuilder:
    """Gives every frame an id, builds rows of ids, int64 `[rows, ..., k]`, and adds the frames of its rows to a block.

    A frame that an observation shares with the one before it, or with its own neighbour, is found by comparing their
    content, so whatever the environment does, the images of a row are exactly those it gave. Every block has all
    frames of its rows; those that it shares with the worker's last block have the same ids there.

    `open_steps`: how many of the latest steps may be part of rows that are not complete yet.
    """

    def __init__(
        self,
        builder: Builder,
        stacking: Stacking,
        codec: Codec,
        worker: int,
        incarnation: int,
        open_steps: int,
        rate: Rate | None = None,
    ) -> None:
        self.rate = rate
        self.builder, self.stacking, self.codec = builder, stacking, codec
        self._next_id = ((worker + 1) << 16 | incarnation) << 32
        self._packed = {BLACK: codec.pack(np.zeros(stacking.size, np.uint8))}
        self._open: deque[Array] = deque(maxlen=open_steps)
        self._obs: Array | None = None

    def append(self, step: Columns) -> None:
        """Add one step of all environments `[E, ...]`; the arrays are kept, not copied."""
        ids = {name: self._encode(step[name]) for name in IMAGES}
        self._open.append(np.stack(list(ids.values())))
        self.builder.append({**step, **ids})

    @property
    def open_rows(self) -> int:
        """Steps appended whose row is not complete yet."""
        return self.builder.open_rows

    def take(self) -> Columns:
        """All rows that are complete now, and their frames; fresh arrays."""
        rows = self.builder.take()
        ids = np.unique(np.concatenate([rows[name].ravel() for name in IMAGES]))
        packed = [self._packed[i] for i in ids.tolist()]
        latest = np.concatenate([self._ids.ravel(), *(step.ravel() for step in self._open)])
        self._packed = {i: self._packed[i] for i in {BLACK, *latest.tolist()}}
        sizes = np.array([len(frame) for frame in packed], np.int32)
        if self.rate is not None:
            frames = self.codec.unpack(packed, self.stacking.size)
            images = {name: self._images(frames, np.searchsorted(ids, rows[name])) for name in IMAGES}
            rows["priority"] = self.rate({**rows, **images})
        return {**rows, "frame_id": ids, "frame_size": sizes, "frames": np.frombuffer(b"".join(packed), np.uint8)}

    def state(self) -> State:
        packed = list(self._packed.values())
        state = {
            "next_id": np.array([self._next_id]),
            "frame_id": np.array(list(self._packed)),
            "frame_size": np.array([len(frame) for frame in packed]),
            "frames": np.frombuffer(b"".join(packed), np.uint8),
        }
        if self._obs is not None:
            state |= {"obs": self._obs.copy(), "ids": self._ids.copy()}
        if self._open:
            state["open"] = np.stack(self._open)
        return state | nested("builder", self.builder.state())

    def load_state(self, state: State) -> None:
        self._next_id = int(state["next_id"].item())
        frames, ends = state["frames"].tobytes(), np.cumsum(state["frame_size"]).tolist()
        slices = zip(state["frame_id"].tolist(), pairwise([0, *ends]), strict=True)
        self._packed = {i: frames[start:end] for i, (start, end) in slices}
        self._open = deque(state.get("open", ()), self._open.maxlen)
        self._obs = state.get("obs")
        if self._obs is not None:
            self._frames, self._ids = self.stacking.split(self._obs), state["ids"].copy()
        self.builder.load_state(within(state, "builder"))

    def _images(self, frames: Array, indices: Array) -> Array:
        """Images `[..., *shape]` of frames `[n, size]` by their indices `[..., k]`."""
        flat = indices.reshape(-1, self.stacking.k)
        images = np.empty((len(flat), *self.stacking.shape), np.uint8)
        self.stacking.join([frames[index] for index in flat.T], images)
        return images.reshape(*indices.shape[:-1], *self.stacking.shape)

    def _encode(self, obs: Array) -> Array:
        """The ids of the frames `[E, k]` of observations `[E, ...]` that follow those of the last call."""
        if self._obs is None:  # as if all environments had been black before
            self._obs = np.zeros_like(obs)
            self._frames = self.stacking.split(self._obs)
            self._ids = np.full(self._frames.shape[:2], BLACK)
        changed = np.flatnonzero((obs != self._obs).reshape(len(obs), -1).any(1))
        frames, last, last_ids = self.stacking.split(obs[changed]), self._frames[changed], self._ids[changed]
        follows = (frames[:, :-1] == last[:, 1:]).all(-1)
        repeats = (frames[:, 1:] == frames[:, :-1]).all(-1)
        ids = np.empty(frames.shape[:2], np.int64)
        for i, j in np.ndindex(ids.shape):
            if j + 1 < ids.shape[1] and follows[i, j]:
                ids[i, j] = last_ids[i, j + 1]
            else:
                ids[i, j] = ids[i, j - 1] if j > 0 and repeats[i, j - 1] else self._new(frames[i, j])
        self._obs = obs
        self._frames[changed], self._ids[changed] = frames, ids
        return self._ids.copy()

    def _new(self, frame: Array) -> int:
        self._next_id += 1
        self._packed[self._next_id] = self.codec.pack(frame)
        return self._next_id


def worker_of(frame_id: int) -> int:
    """Whose frame it is: 1 + the worker; 0 for `BLACK`."""
    return frame_id >> 48
