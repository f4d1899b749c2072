"""Divergence: find values that are not finite and the data that caused them, and trainers whose parameters differ."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from drl_cli.chains.process_group import ProcessGroup
from drl_cli.errors import AlgorithmFailed, Diverged
from drl_cli.optim.params import Params
from drl_cli.replay.frames import is_unique
from drl_cli.types import Array, Columns, State
from drl_cli.utils.lazy import torch

SUSPICIOUS = 1e10
"""Larger values are suspicious, and so are values above 1e6 * max(1, median of the column)."""


def check_metrics(names: Sequence[str], values: Array, opt_steps: int, columns: Columns, cause: str) -> None:
    """Raise Diverged if a metric in `values` `[U, M]` is not finite. The error has the batch of this update.

    The message names the first bad value in the batch, and the environment that produced the value (column `source`).
    If the batch has no bad value, the message ends with `cause`.
    """
    bad = np.argwhere(~np.isfinite(values))
    if len(bad) == 0:
        return
    update, metric = (int(i) for i in bad[0])
    batch = {name: (column if is_unique(name) else column[update]).copy() for name, column in columns.items()}
    culprit = _not_finite(batch) or _suspicious(batch)
    message = _message(opt_steps + update + 1, names[metric].replace("_", " "), values[update, metric])
    raise Diverged(f"{message}; {culprit or cause}", batch, culprit is not None)


def check_state(state: State, opt_steps: int) -> None:
    """Raise Diverged with the name of the first array that is not finite."""
    for name, values in state.items():
        if not np.isfinite(values).all():
            raise Diverged(_message(opt_steps, name, values[~np.isfinite(values)][0]))


def check_drift(params: Params, group: ProcessGroup, opt_steps: int) -> None:
    """Raise AlgorithmFailed if the trainers' parameters differ."""
    tensors = params.tensors()
    spread = group.spread(torch.cat([tensor.detach().flatten().float() for tensor in tensors.values()]))
    if (difference := float(spread.max())) > 0.0:
        name = _name_at(tensors, index := int(spread.argmax()))
        what = f"parameters of '{params.part_of(index)}'" if name == "params" else f"values of '{name}'"
        raise AlgorithmFailed(
            f"the trainers drifted apart: their {what} differ by {difference:.3g} after update {opt_steps}. "
            "Only optimizer.step may change parameters: it averages the trainers' gradients. "
            "A buffer must not depend on the rows of one trainer"
        )


def _message(update: int, name: str, value: float) -> str:
    return f"training diverged at update {update}: {name} is {'NaN' if math.isnan(value) else 'infinite'}"


def _not_finite(batch: State) -> str | None:
    """Return a text that names the first value of a batch that is not finite, or None."""
    for name, column in _floats(batch).items():
        bad = np.argwhere(~np.isfinite(column))
        if len(bad):
            return f"first bad value: {name}{_origin(batch, bad[0])}"
    return None


def _suspicious(batch: State) -> str | None:
    """Return a text that names the largest suspicious value of a batch, or None."""
    largest, text = 0.0, None
    for name, column in _floats(batch).items():
        sizes = np.abs(column)
        median, size = float(np.median(sizes)), float(sizes.max())
        if size > max(largest, min(SUSPICIOUS, 1e6 * max(1.0, median))):
            where = np.unravel_index(sizes.argmax(), sizes.shape)
            largest, value = size, float(column[where])
            text = f"the batch was finite; its largest value: {name} {value:g}{_origin(batch, np.array(where))}"
    return text


def _floats(batch: State) -> State:
    return {name: column for name, column in batch.items() if column.dtype.kind == "f" and column.size}


def _origin(batch: State, where: Array) -> str:
    """Return a text that names the worker and environment of the value at index `where` of a column."""
    if "source" not in batch:
        return ""
    source = batch["source"]
    worker, env = divmod(int(source[tuple(where[: source.ndim])]), 2**16)
    return f" from worker {worker} env {env}"


def _name_at(tensors: "Mapping[str, torch.Tensor]", index: int) -> str:
    """Return the name of the tensor that contains element `index` of the concatenated tensors."""
    for name, tensor in tensors.items():
        index -= tensor.numel()
        if index < 0:
            return name
    raise IndexError(index)
