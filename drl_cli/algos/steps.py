"""Functions that turn a batch of sequences into one row for each step, with n-step rewards."""

from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.context import AlgoContext
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.encoder import at_steps, flat_steps
from drl_cli.replay.stacks import unjoined
from drl_cli.utils.lazy import Tensor, torch


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


def per_sequence(values: Tensor, batch: Batch) -> Tensor:
    """Reshape `values` `[N]` to `[B, T]` if the batch has B sequences with T steps after the burn-in.

    `values` has one number for each row. Return them unchanged if the batch has transitions.
    """
    return values.view(len(batch["valid"]), -1) if "valid" in batch else values


def n_step_sequences(batch: Batch, n_step: int) -> Batch:
    """Replace the 1-step rewards, discounts and next observations of sequences `[B, L, ...]` by n-step values.

    Return the new batch. Its column `last`, int64 `[B, L]`, has the index in the sequence of the last of the n steps.
    Return the batch unchanged if it has no sequences or if `n_step` is 1.
    """
    if n_step == 1 or "valid" not in batch:
        return batch
    reward, discount, last = n_step_windows(batch["reward"], batch["discount"], batch["valid"], n_step)
    sequences = torch.arange(len(last), device=last.device).unsqueeze(1)  # the index of each sequence, [B, 1]
    next_obs = at_steps(batch["next_obs"], sequences, last)
    return {**batch, "reward": reward, "discount": discount, "next_obs": next_obs, "last": last}
