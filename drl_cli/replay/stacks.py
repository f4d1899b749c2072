"""Batches of image stacks that store each frame once. A stack is joined from its frames when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from drl_cli.types import map_parts
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from drl_cli.replay.frames import Stacking


class Stacks:
    """A column of image stacks `[*n, *shape]`: frames, uint8 `[F, size]`, and the frames' indices, int32 `[*n, k]`.

    Indexing chooses rows and copies no frame. `joined` returns the stacks.
    """

    def __init__(self, frames: Tensor, index: Tensor, stacking: Stacking) -> None:
        self.frames, self.index, self.stacking = frames, index, stacking

    def __getitem__(self, rows: Any) -> Stacks:  # Any: indices, a mask or a slice
        return Stacks(self.frames, self.index[rows], self.stacking)

    def joined(self) -> Tensor:
        """Return the stacks, uint8 `[*n, *shape]`."""
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
    """Return the columns of a batch, without joining any Stacks."""
    return dict(batch.columns if isinstance(batch, FrameBatch) else batch)


def like(batch: Mapping[str, Any], columns: dict[str, Any]) -> MutableMapping[str, Any]:
    """Return columns as a batch of the same kind as `batch`: a FrameBatch or a dict."""
    return FrameBatch(columns) if isinstance(batch, FrameBatch) else columns


def take(batch: Mapping[str, Any], rows: Any) -> MutableMapping[str, Any]:  # Any: indices, a mask or a slice
    """Return the rows of a batch with these indices. Only reading a column of the result joins its stacks."""
    return like(batch, map_parts(lambda column: column[rows], unjoined(batch)))
