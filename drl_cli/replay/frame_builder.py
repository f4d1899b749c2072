"""FrameBuilder: a wrapper around a worker's builder, so that each frame of an image observation is stored once."""

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from drl_cli.replay.builders import Builder
from drl_cli.replay.frames import Codec, Stacking, image_columns, join_frames, split_frames
from drl_cli.types import Array, Columns, State, column_name, nested, within

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
        """Return the priorities of rows with frame ids."""
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
        """Set the last observations `[E, ...]` and the ids of their frames."""
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
