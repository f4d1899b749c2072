"""Batches as algorithms read them: rollouts in time order, their random minibatches, and sequences as rows of steps."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Batch
from drl_cli.algos.context import AlgoContext
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.encoder import Encoder, View, action_mask, at_steps, flat_steps
from drl_cli.replay.frames import like, take, unjoined
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import Generator, Tensor


MAX_ROWS = 512
"""Largest number of rows in one forward pass without gradients, so that the layers' outputs need little memory."""


class Rollouts:
    """The N transitions of an on-policy batch in time order, as columns `[N, ...]` or as pieces `[n, T, ...]`.

    `rows` has the columns `[N, ...]` of the batch, to which an algorithm may add columns. The column `cut` is True if
    the next row does not continue the episode. Such a row is the last row of an episode, of the rows that a worker sent
    together, or of the batch.

    A piece is a sequence of consecutive steps of one episode. It ends at a row with `cut`, or after `max_length` steps.
    There are n pieces, and the longest has T steps. `index` `[n, T]` has the row numbers of the steps of each piece.
    Shorter pieces are padded with their last row. `mask`, bool `[n, T]`, is False for padding.
    """

    def __init__(self, batch: Batch, group: ProcessGroup, max_length: int | None = None) -> None:
        if "cut" not in batch:
            raise ValueError('rollouts need the column cut, which only replay=fifo has: set TABLES = ("fifo-once",)')
        self.group, self.num = group, len(batch["reward"])
        cut = batch["cut"].clone()
        cut[-1] = True
        columns = unjoined(batch) | {"cut": cut}
        self.rows: MutableMapping[str, Any] = like(batch, columns)  # Any: a tensor, or a dict of tensors
        index, mask = split_rows(cut.cpu().numpy(), max_length or self.num)
        self.index = torch.from_numpy(index).to(cut.device)
        self.mask = torch.from_numpy(mask).to(cut.device)

    @property
    def bootstrap_obs(self) -> Any:  # Any: a tensor, or a dict of tensors
        """The next observation `[n, ...]` of the last step of each piece, also where this step ended the episode."""
        # `take` chooses the rows before image stacks are joined from their frames, so only these rows are joined.
        next_obs = like(self.rows, {"next_obs": unjoined(self.rows)["next_obs"]})
        last_rows = self.index[:, -1]  # the padding of a piece repeats its last row
        return take(next_obs, last_rows)["next_obs"]

    def pieces(self, column: Any) -> Any:  # Any: a tensor, or a dict of tensors
        """Convert a column `[N, ...]` to pieces `[n, T, ...]`: n sequences of consecutive steps, padded to length T."""
        return take({"column": column}, self.index)["column"]  # `take` also indexes each tensor of a dict

    def flat(self, pieces: Tensor) -> Tensor:
        """Convert pieces `[n, T, ...]` back to a column `[N, ...]` without padding: the inverse of `pieces`."""
        return pieces[self.mask]

    def next_values(self, value: Tensor, bootstrap: Tensor) -> Tensor:
        """Return V(next_obs) of all rows, `[N]`. `value` `[N]` is V(obs), and `bootstrap` `[n]` is V(bootstrap_obs)."""
        next_value = value.roll(-1)  # next_obs is the observation of the next row, except in the last row of a piece
        next_value[self.index[:, -1]] = bootstrap
        return next_value

    def steps(self, value: Tensor, bootstrap: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return reward, discount, V(obs), V(next_obs) and cut as pieces `[n, T]`, the arguments of `drl.losses.gae`.

        `value` is V(obs) `[N]` and `bootstrap` is V(bootstrap_obs) `[n]`, both without a gradient. The returned `cut`
        is True in the last step of every piece, so that padding does not change the returns of the other steps.
        """
        columns = [self.rows["reward"], self.rows["discount"], value, self.next_values(value, bootstrap)]
        reward, discount, values, next_values = (self.pieces(column) for column in columns)
        is_last = self.index == self.index[:, -1:]  # the last step of a piece, and its repetitions as padding
        cut = self.pieces(self.rows["cut"]) | is_last
        return reward, discount, values, next_values, cut

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean of a column `[N]` over the rows of all trainers."""
        mean = column.mean()
        self.group.mean_(mean)  # in place
        return mean

    def quantile(self, column: Tensor, q: float) -> Tensor:
        """Return the quantile `q`, from 0 to 1, of a column `[N]` over the rows of all trainers."""
        return self.group.gather(column).quantile(q)

    def normalized(self, column: Tensor) -> Tensor:
        """Scale a column `[N]` to mean 0 and standard deviation 1 over the rows of all trainers."""
        mean = self.mean(column)
        variance = self.mean((column - mean).square())
        return (column - mean) / (variance.sqrt() + 1e-8)

    def minibatches(self, generator: Generator, size: int) -> Iterator[MutableMapping[str, Any]]:  # Any: as in `rows`
        """Yield this trainer's rows once, in random order, as minibatches `[M, ...]` with a column `weight` `[M]`.

        A minibatch has `size` rows from all trainers together. All trainers draw the same minibatch, because their
        generators have equal seeds. Each trainer yields only its own rows of the minibatch, so M differs between
        trainers. The column `weight` corrects for this: the average of mean(weight * loss) over the trainers is the
        mean loss of the whole minibatch. With one trainer, all weights are 1.
        """
        order = torch.randperm(self.num * self.group.size, generator=generator, device=generator.device)
        device = self.index.device
        for global_rows in torch.split(order, size):
            rows, weight = self._own_rows(global_rows)
            minibatch = take(self.rows, rows.to(device))
            minibatch["weight"] = torch.full((len(rows),), weight, device=device)
            yield minibatch

    def _own_rows(self, global_rows: Tensor) -> tuple[Tensor, float]:
        """Return the row numbers of this trainer's rows in a minibatch, `[M]`, and the weight of these rows.

        `global_rows` has the minibatch's rows, numbered over the rows of all trainers. If this trainer has no row in
        the minibatch, return row 0 with weight 0, because every trainer has to make the gradient step.
        """
        first = self.group.rank * self.num  # the number of this trainer's first row among all rows
        is_own = (global_rows >= first) & (global_rows < first + self.num)
        own = global_rows[is_own] - first
        if len(own) == 0:
            return global_rows.new_zeros(1), 0.0
        return own, len(own) * self.group.size / len(global_rows)  # own rows / mean number of rows per trainer


class EncodedRollouts(Rollouts):
    """Rollouts for algorithms whose networks read the features of an encoder.

    `rows` has only the columns that minibatches need. If the encoder has no parameters, the column `obs` contains the
    features in place of the observations. A recurrent encoder learns from pieces of at most `seq_len` steps. Each piece
    starts with the recurrent state that the policy had before the piece's first step.
    """

    def __init__(self, batch: Batch, encoder: Encoder, group: ProcessGroup, seq_len: int = 1) -> None:
        super().__init__(batch, group, seq_len)
        self.encoder = encoder
        names = ("action", "log_prob", "obs", "next_obs") if encoder.is_trainable else ("action", "log_prob")
        columns = unjoined(batch)
        self.ends = self.rows["cut"].nonzero()[:, 0]  # the rows whose next_obs is not the obs of the next row
        self.rows = like(batch, {name: columns[name] for name in names if name in columns})
        mask = action_mask(columns["obs"])
        if mask is not None:
            self.rows["action_mask"] = mask
        if not encoder.is_trainable:
            self.rows["obs"] = encoder.features(batch["obs"])
            # `features` encodes these when it needs them. Until then, stacks of images are not joined.
            self._next_rows = like(batch, {"next_obs": columns["next_obs"]})
        if encoder.memory is not None:
            self._state = batch["state"]

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the features of obs and of next_obs of all rows, `[N, F]` each, with the encoder's present weights."""
        if not self.encoder.is_trainable:
            return self.rows["obs"], self.encoder.features(self._next_rows["next_obs"])
        if self.encoder.memory is not None:
            return self._recurrent_features()
        all_rows = torch.arange(self.num, device=self.rows["action"].device)
        obs = torch.cat([self._view(rows).obs for rows in torch.split(all_rows, MAX_ROWS)])
        end_views = [self._view(rows) for rows in torch.split(self.ends, MAX_ROWS)]
        next_obs = obs.roll(-1, 0)  # the next observation is the observation of the next row, except in `ends`
        next_obs[self.ends] = torch.cat([view.next_obs for view in end_views])
        return obs, next_obs

    def _view(self, rows: Tensor) -> View:
        """Return the features of these rows, without a gradient. The View computes them when they are read."""
        return self.encoder(take(self.rows, rows), learns=False)

    def _recurrent_features(self) -> tuple[Tensor, Tensor]:
        """Return the features of obs and of next_obs of all rows, `[N, F]` each, computed by a recurrent encoder."""
        view = self.encoder(self._take_pieces(slice(None)), learns=False)  # the features of all pieces, `[n T, F]`
        is_valid, rows = self.mask.flatten(), self.index[self.mask]
        obs = view.obs.new_empty(self.num, view.obs.shape[-1])
        next_obs = torch.empty_like(obs)
        obs[rows], next_obs[rows] = view.obs[is_valid], view.next_obs[is_valid]
        return obs, next_obs

    def minibatches(self, generator: Generator, size: int) -> Iterator[MutableMapping[str, Any]]:  # Any: as in `rows`
        """Yield this trainer's rows once, in random order, as minibatches.

        Without a recurrent encoder, minibatches have rows `[M, ...]`, as in `Rollouts.minibatches`. If there is only
        one trainer, the column `weight` is left out. With a recurrent encoder, each trainer draws minibatches
        `[M, T, ...]` from its own pieces (consecutive steps of one episode). `valid` `[M, T]` is False for padding.
        """
        num_trainers = self.group.size
        if self.encoder.memory is not None:
            order = torch.randperm(len(self.index), generator=generator).to(self.index.device)
            piece_length = self.index.shape[1]
            num_pieces = size // num_trainers // piece_length  # `size` counts rows of all trainers
            for which in torch.split(order, max(1, num_pieces)):
                yield self._take_pieces(which)
        elif num_trainers > 1:
            yield from super().minibatches(generator, size)
        else:
            order = torch.randperm(self.num, generator=generator).to(self.rows["action"].device)
            if self.encoder.is_trainable:
                yield from (take(self.rows, rows) for rows in torch.split(order, size))
            else:  # shuffle all rows at once, which is cheap because the rows are small
                shuffled = {name: column[order] for name, column in self.rows.items()}
                for start in range(0, self.num, size):
                    yield {name: column[start : start + size] for name, column in shuffled.items()}

    def _take_pieces(self, which: Any) -> dict[str, Any]:  # Any: `which` is indices or a slice
        """Return the columns `[M, T, ...]` of M pieces, which are consecutive steps of one episode.

        `valid` `[M, T]` is False for padding, and `state` `[M, S]` is the recurrent state before the first step.
        """
        index = self.index[which]
        return {**take(self.rows, index), "valid": self.mask[which], "state": self._state[index[:, 0]]}


def split_rows(cut: Array, max_length: int) -> tuple[Array, Array]:
    """Split N rows into n pieces of consecutive rows. A piece ends after a row with `cut`, or after `max_length` rows.

    Return the row numbers of the pieces, `[n, T]`, and a mask, bool `[n, T]`, that is False for padding. T is the
    length of the longest piece. Shorter pieces are padded with the number of their last row.
    """
    begins = np.concatenate([[True], cut[:-1]])
    rows = np.arange(len(cut))
    age = rows - np.maximum.accumulate(np.where(begins, rows, 0))  # number of rows since the last cut
    first = rows[age % max_length == 0]  # the first row of each piece
    length = np.diff(np.append(first, len(cut)))  # the number of rows of each piece
    last = first + length - 1
    step = np.arange(length.max())
    index = np.minimum(first[:, None] + step, last[:, None])
    mask = step < length[:, None]
    return index, mask


def steps(batch: Batch, context: AlgoContext) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
    """Return the columns `[N, ...]` of a batch, with one row for each step to learn from.

    The columns of transitions are returned unchanged. In sequences `[B, L, ...]`, each step after the burn-in becomes
    one row, and two columns `[N]` are added. `valid_weight` is 0 for padding and the same positive number for all other
    steps, so that its mean over the rows of all trainers is 1. `weight` is `valid_weight`, multiplied by the importance
    weight of the sequence if the batch has importance weights.
    """
    if "valid" not in batch:
        return unjoined(batch)  # image stacks stay lists of frames, because only the encoder reads images
    rows = flat_steps(batch, context.burn_in)
    mean = rows["valid_weight"].mean()
    context.group.mean_(mean)  # the mean over the rows of all trainers
    return rows | {"weight": rows["weight"] / mean, "valid_weight": rows["valid_weight"] / mean}


def n_step_sequences(batch: Batch, n_step: int) -> Batch:
    """Replace the 1-step rewards, discounts and next observations of sequences `[B, L, ...]` by n-step values.

    Return the new batch. Its column `last`, int64 `[B, L]`, has the index in the sequence of the last of the n steps.
    """
    reward, discount, last = n_step_windows(batch["reward"], batch["discount"], batch["valid"], n_step)
    sequences = torch.arange(len(last), device=last.device).unsqueeze(1)  # the index of each sequence, [B, 1]
    next_obs = at_steps(batch["next_obs"], sequences, last)
    return {**batch, "reward": reward, "discount": discount, "next_obs": next_obs, "last": last}
