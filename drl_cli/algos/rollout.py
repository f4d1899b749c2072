"""Rollout: transitions in time order, which an algorithm splits into minibatches several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Batch
from drl_cli.networks.encoder import Encoder, action_mask
from drl_cli.optim.group import ProcessGroup
from drl_cli.types import Array, map_parts
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

PIECE = 512
"""Maximum number of rows in one encoder pass without gradients, so that the layers' outputs need little memory."""


class Rollout:
    """The rows `[N, ...]` of a batch. The algorithm adds columns to `rows` before it calls `minibatches`.

    A minibatch has `minibatch_size` transitions, counted over all trainers. For a recurrent encoder, the rows are cut
    into chunks of up to `seq_len` consecutive steps of one episode. A chunk starts with the recurrent state that the
    policy had at the chunk's first step.
    """

    def __init__(
        self, batch: Batch, encoder: Encoder, group: ProcessGroup, minibatch_size: int, seq_len: int = 1
    ) -> None:
        self.encoder, self.group, self.minibatch_size = encoder, group, minibatch_size
        names = ("action", "log_prob", "obs", "next_obs") if encoder.is_trainable else ("action", "log_prob")
        self.rows: dict[str, Any] = {name: batch[name] for name in names}  # Any: a tensor, or a dict of tensors
        if (mask := action_mask(batch["obs"])) is not None:
            self.rows["action_mask"] = mask
        if not encoder.is_trainable:
            self.rows["obs"], self._next = encoder.features(batch["obs"]), batch["next_obs"]
        self.num = len(batch["reward"])
        if encoder.memory is not None:
            self._state = batch["state"]
            index, valid = chunks(batch["cut"].cpu().numpy(), seq_len)
            self.index, self.valid = (torch.from_numpy(x).to(batch["reward"].device) for x in (index, valid))

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the features of obs and next_obs of all rows, `[N, F]` each, with the encoder's current parameters."""
        if not self.encoder.is_trainable:
            return self.rows["obs"], self.encoder.features(self._next)
        if self.encoder.memory is None:
            pieces = torch.split(torch.arange(self.num, device=self.rows["action"].device), PIECE)
            views = [self.encoder(_take(self.rows, piece), learns=False) for piece in pieces]
            return torch.cat([view.obs for view in views]), torch.cat([view.next_obs for view in views])
        view = self.encoder(self._chunks(slice(None)), learns=False)
        rows = self.index[self.valid]
        out = view.obs.new_empty(2, self.num, view.obs.shape[-1])
        out[0, rows], out[1, rows] = view.obs[self.valid.flatten()], view.next_obs[self.valid.flatten()]
        return out[0], out[1]

    def minibatches(self, generator: Generator) -> Iterator[dict[str, Any]]:  # Any: a tensor, or a dict of tensors
        """Yield every row once, in minibatches of randomly chosen rows `[M, ...]` or chunks `[M, T, ...]`."""
        size, ranks = self.minibatch_size, self.group.size
        if self.encoder.memory is not None:
            order = torch.randperm(len(self.index), generator=generator).to(self.index.device)
            for part in torch.split(order, max(1, size // ranks // self.index.shape[1])):
                yield self._chunks(part)
        elif ranks > 1:
            yield from self._shared(torch.split(torch.randperm(self.num * ranks, generator=generator), size))
        else:
            order = torch.randperm(self.num, generator=generator).to(self.rows["action"].device)
            if self.encoder.is_trainable:
                yield from (_take(self.rows, part) for part in torch.split(order, size))
            else:  # shuffle all rows at once, which is cheap because the rows are small
                parts = {name: torch.split(column[order], size) for name, column in self.rows.items()}
                yield from (dict(zip(parts, part, strict=True)) for part in zip(*parts.values(), strict=True))

    def _shared(self, parts: tuple[Tensor, ...]) -> Iterator[dict[str, Any]]:  # Any: a tensor, or a dict of tensors
        """Yield this trainer's rows of each minibatch; `parts` has each minibatch's indices into all trainers' rows.

        `is_mine`, bool `[all rows]`, marks this trainer's rows in the minibatch. `valid_weight` scales the rows' losses
        so that the gradient averaged over trainers is the mean over the minibatch. A trainer without a row in a
        minibatch gets one row of weight 0.
        """
        first, device = self.group.rank * self.num, self.rows["action"].device
        for part in parts:
            is_mine = (part >= first) & (part < first + self.num)
            share = int(is_mine.sum()) * self.group.size / len(part)
            is_mine[0] |= share == 0
            rows = _take(self.rows, ((part[is_mine] - first) % self.num).to(device))
            yield rows | {"valid_weight": torch.full((len(rows["action"]),), share, device=device), "is_mine": is_mine}

    def _chunks(self, which: Any) -> dict[str, Any]:  # Any: `which` is indices or a slice
        index = self.index[which]
        rows: dict[str, Any] = _take(self.rows, index)  # Any: a tensor, or a dict of tensors
        return rows | {"valid": self.valid[which], "state": self._state[index[:, 0]]}


def chunks(cut: Array, length: int) -> tuple[Array, Array]:
    """Cut rows into chunks of up to `length` rows; a chunk also ends after each row where `cut` `[N]` is True.

    Return the rows' indices `[n, T]` and a bool mask `[n, T]` that is False for padding. Padding repeats the index of
    the chunk's last row.
    """
    begins = np.concatenate([[True], cut[:-1]])
    rows = np.arange(len(cut))
    age = rows - np.maximum.accumulate(np.where(begins, rows, 0))
    first = rows[age % length == 0]
    size = np.diff(np.append(first, len(cut)))
    step = np.arange(size.max())
    return np.minimum(first[:, None] + step, (first + size - 1)[:, None]), step < size[:, None]


def _take(rows: dict[str, Any], index: Any) -> dict[str, Any]:  # Any: tensors, or dicts of tensors
    taken: dict[str, Any] = map_parts(lambda column: column[index], rows)
    return taken
