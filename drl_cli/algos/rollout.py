"""Rollouts: the transitions of an on-policy batch in time order. An algorithm splits them into minibatches."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Batch
from drl_cli.networks.encoder import Encoder, action_mask
from drl_cli.optim.group import ProcessGroup
from drl_cli.replay.stacks import like, take, unjoined
from drl_cli.types import Array
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

PIECE = 512
"""Maximum number of rows in one encoder pass without gradients, so that the layers' outputs need little memory."""


class Rollouts:
    """The rows `[N, ...]` of an on-policy batch in time order, and the same rows as pieces `[n, T, ...]`.

    N is the number of rows, n the number of pieces, and T the length of the longest piece. A piece is a run of
    consecutive steps of one episode. It ends where the episode, the batch or the worker's block ends, or after
    `max_length` steps. A block is what one collect call of a worker returns. `rows` has the batch's columns, and the
    algorithm may add columns `[N, ...]`. The column `cut` is True in the last row of each episode, of each block, and
    of the batch. `index` `[n, T]` has the indices of each piece's rows. `mask`, bool `[n, T]`, is False for padding,
    which repeats the piece's last row.
    """

    def __init__(self, batch: Batch, group: ProcessGroup, max_length: int | None = None) -> None:
        if "cut" not in batch:
            raise ValueError('rollouts need the column cut, which only replay=fifo has: set TABLES = ("fifo-once",)')
        self.group, self.num = group, len(batch["reward"])
        cut = batch["cut"].clone()
        cut[-1] = True
        columns = unjoined(batch) | {"cut": cut}
        self.rows: MutableMapping[str, Any] = like(batch, columns)  # Any: a tensor, or a dict of tensors
        index, mask = chunks(cut.cpu().numpy(), max_length or self.num)
        self.index, self.mask = (torch.from_numpy(array).to(cut.device) for array in (index, mask))

    @property
    def bootstrap_obs(self) -> Any:  # Any: a tensor, or a dict of tensors
        """The observation after the last step of each piece, `[n, ...]`, even if the episode ended with this step."""
        next_obs = like(self.rows, {"next_obs": unjoined(self.rows)["next_obs"]})
        return take(next_obs, self.index[:, -1])["next_obs"]

    def pieces(self, column: Any) -> Any:  # Any: a tensor, or a dict of tensors
        """Return a column `[N, ...]` as pieces `[n, T, ...]`."""
        return take({"column": column}, self.index)["column"]

    def flat(self, pieces: Tensor) -> Tensor:
        """Return pieces `[n, T, ...]` as a column `[N, ...]` without padding: the inverse of `pieces`."""
        return pieces[self.mask]

    def next_values(self, value: Tensor, bootstrap: Tensor) -> Tensor:
        """Return V(next_obs) of each row, `[N]`, from V(obs) `[N]` and V(bootstrap_obs) `[n]`."""
        next_value = value.roll(-1)
        next_value[self.index[:, -1]] = bootstrap
        return next_value

    def steps(self, value: Tensor, bootstrap: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return reward, discount, V(obs), V(next_obs) and cut as pieces `[n, T]`, as `drl.losses.gae` needs them.

        `value` is V(obs) `[N]` and `bootstrap` is V(bootstrap_obs) `[n]`, both without a gradient. In these pieces,
        `cut` is also True in the last step of each piece, so that padding never changes the result of another step.
        """
        columns = [self.rows["reward"], self.rows["discount"], value, self.next_values(value, bootstrap)]
        reward, discount, now, then = (self.pieces(column) for column in columns)
        cut = self.pieces(self.rows["cut"]) | (self.index == self.index[:, -1:])
        return reward, discount, now, then, cut

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean of a column `[N]` over the rows of all trainers."""
        self.group.mean_(mean := column.mean())
        return mean

    def quantile(self, column: Tensor, q: float) -> Tensor:
        """Return the quantile `q` of a column `[N]` over the rows of all trainers."""
        return self.group.gather(column).quantile(q)

    def normalized(self, column: Tensor) -> Tensor:
        """Scale a column `[N]` to mean 0 and standard deviation 1 over the rows of all trainers."""
        mean = self.mean(column)
        return (column - mean) / (self.mean((column - mean).square()).sqrt() + 1e-8)

    def minibatches(self, generator: Generator, size: int) -> Iterator[MutableMapping[str, Any]]:  # Any: as in `rows`
        """Yield each of this trainer's rows once, in random minibatches `[M, ...]`.

        A minibatch has `size` random rows from all trainers together. Every trainer draws the same minibatch, because
        the generators of all trainers have equal seeds, and yields only its own rows. Trainers own different numbers of
        these rows, and the column `weight` `[M]` corrects for this. Each trainer takes the mean of `weight * loss` over
        its rows, and the average of these means over the trainers is the mean loss of the whole minibatch.
        """
        order = torch.randperm(self.num * self.group.size, generator=generator, device=generator.device)
        device = self.index.device
        for part in torch.split(order, size):
            rows, weight = self._own(part)
            minibatch = take(self.rows, rows.to(device))
            minibatch["weight"] = torch.full((len(rows),), weight, device=device)
            yield minibatch

    def _own(self, part: Tensor) -> tuple[Tensor, float]:
        """Return the indices of this trainer's rows in a minibatch, and their weight.

        `part` has the indices of the minibatch's rows among the rows of all trainers. A trainer without a row in the
        minibatch gets its own row 0 with weight 0, because every trainer has to take part in the gradient step.
        """
        first = self.group.rank * self.num
        own = part[(part >= first) & (part < first + self.num)] - first
        if len(own) == 0:
            return part.new_zeros(1), 0.0
        return own, len(own) * self.group.size / len(part)  # this trainer's rows, divided by the mean over the trainers


class EncodedRollouts(Rollouts):
    """Rollouts for an algorithm with an encoder. `rows` has only the columns that minibatches need.

    For a recurrent encoder, the rows are cut into pieces of at most `seq_len` steps. The encoder starts each piece with
    the recurrent state that the policy had at the piece's first step.
    """

    def __init__(self, batch: Batch, encoder: Encoder, group: ProcessGroup, seq_len: int = 1) -> None:
        super().__init__(batch, group, seq_len)
        self.encoder = encoder
        names = ("action", "log_prob", "obs", "next_obs") if encoder.is_trainable else ("action", "log_prob")
        columns = unjoined(batch)
        self.ends = self.rows["cut"].nonzero()[:, 0]  # the rows whose next_obs is not the obs of the next row
        self.rows = like(batch, {name: columns[name] for name in names if name in columns})
        if (mask := action_mask(columns["obs"])) is not None:
            self.rows["action_mask"] = mask
        if not encoder.is_trainable:
            self.rows["obs"], self._next = encoder.features(batch["obs"]), like(batch, {"obs": columns["next_obs"]})
        if encoder.memory is not None:
            self._state = batch["state"]

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the features of obs and next_obs of all rows, `[N, F]` each, with the encoder's current parameters."""
        if not self.encoder.is_trainable:
            return self.rows["obs"], self.encoder.features(self._next["obs"])
        if self.encoder.memory is not None:
            return self._recurrent_features()
        pieces = torch.split(torch.arange(self.num, device=self.rows["action"].device), PIECE)
        obs = torch.cat([self.encoder(take(self.rows, piece), learns=False).obs for piece in pieces])
        ends = [self.encoder(take(self.rows, piece), learns=False) for piece in torch.split(self.ends, PIECE)]
        next_obs = obs.roll(-1, 0)  # the next observation is the observation of the next row, except in `ends`
        next_obs[self.ends] = torch.cat([view.next_obs for view in ends])
        return obs, next_obs

    def _recurrent_features(self) -> tuple[Tensor, Tensor]:
        """Return the same as `features` for an encoder with a memory, which is unrolled over all pieces."""
        view = self.encoder(self._chunks(slice(None)), learns=False)
        is_valid, rows = self.mask.flatten(), self.index[self.mask]
        obs = view.obs.new_empty(self.num, view.obs.shape[-1])
        next_obs = torch.empty_like(obs)
        obs[rows], next_obs[rows] = view.obs[is_valid], view.next_obs[is_valid]
        return obs, next_obs

    def minibatches(self, generator: Generator, size: int) -> Iterator[MutableMapping[str, Any]]:  # Any: as in `rows`
        """Yield every row once, in minibatches of random rows `[M, ...]` or, with a memory, of pieces `[M, T, ...]`.

        With several trainers, rows are drawn and weighted as in `Rollouts.minibatches`, but pieces are drawn by each
        trainer from its own. Pieces have a column `valid`, from which `drl_cli.algos.learner.steps` computes their
        weights.
        """
        ranks = self.group.size
        if self.encoder.memory is not None:
            order = torch.randperm(len(self.index), generator=generator).to(self.index.device)
            num_pieces = size // ranks // self.index.shape[1]  # of this trainer; `size` counts rows of all trainers
            for part in torch.split(order, max(1, num_pieces)):
                yield self._chunks(part)
        elif ranks > 1:
            yield from super().minibatches(generator, size)
        else:
            order = torch.randperm(self.num, generator=generator).to(self.rows["action"].device)
            if self.encoder.is_trainable:
                yield from (take(self.rows, part) for part in torch.split(order, size))
            else:  # shuffle all rows at once, which is cheap because the rows are small
                shuffled = {name: column[order] for name, column in self.rows.items()}
                for start in range(0, self.num, size):
                    yield {name: column[start : start + size] for name, column in shuffled.items()}

    def _chunks(self, which: Any) -> dict[str, Any]:  # Any: `which` is indices or a slice
        """Return these pieces with their columns `valid` `[M, T]` and the first recurrent states `state` `[M, S]`."""
        index = self.index[which]
        return {**take(self.rows, index), "valid": self.mask[which], "state": self._state[index[:, 0]]}


def chunks(cut: Array, length: int) -> tuple[Array, Array]:
    """Cut rows into chunks of up to `length` rows; a chunk also ends after each row where `cut` `[N]` is True.

    Return the rows' indices `[n, T]` and a bool mask `[n, T]` that is False for padding. Padding repeats the index of
    the chunk's last row.
    """
    begins = np.concatenate([[True], cut[:-1]])
    rows = np.arange(len(cut))
    age = rows - np.maximum.accumulate(np.where(begins, rows, 0))  # number of rows since the last cut
    first = rows[age % length == 0]  # the first row of each chunk
    size = np.diff(np.append(first, len(cut)))
    step = np.arange(size.max())
    return np.minimum(first[:, None] + step, (first + size - 1)[:, None]), step < size[:, None]
