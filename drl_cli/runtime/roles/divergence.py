"""Divergence: whether a training went wrong, and which value of its data was at fault."""

import math
from collections.abc import Sequence

import numpy as np

from drl_cli.errors import Diverged
from drl_cli.types import Array, Columns, State

ABSURD = 1e10
"""A value above this is at fault, and one that is a million times what is usual in its column."""


def check_metrics(names: Sequence[str], values: Array, opt_steps: int, columns: Columns, cause: str) -> None:
    """Raise Diverged where metrics `[U, M]` after `opt_steps` are not finite, with the batch of `columns` `[U, ...]`.

    It names the first bad value, and from the column `source`, where there is one, who made it; else the `cause`.
    """
    bad = np.argwhere(~np.isfinite(values))
    if len(bad) == 0:
        return
    update, metric = (int(i) for i in bad[0])
    batch = {name: column[update].copy() for name, column in columns.items()}
    culprit = _first_bad(batch) or _absurd(batch)
    message = _message(opt_steps + update + 1, names[metric].replace("_", " "), values[update, metric])
    raise Diverged(f"{message}; {culprit or cause}", batch, culprit is not None)


def check_state(state: State, opt_steps: int) -> None:
    """Raise Diverged naming the first array that is not finite."""
    for name, values in state.items():
        if not np.isfinite(values).all():
            raise Diverged(_message(opt_steps, name, values[~np.isfinite(values)][0]))


def _message(update: int, what: str, value: float) -> str:
    return f"training diverged at update {update}: {what} is {'NaN' if math.isnan(value) else 'infinite'}"


def _first_bad(batch: State) -> str | None:
    for name, column in _floats(batch).items():
        bad = np.argwhere(~np.isfinite(column))
        if len(bad):
            return f"first bad value: {name}{_maker(batch, bad[0])}"
    return None


def _absurd(batch: State) -> str | None:
    """The largest value of a finite batch where it is out of all proportion."""
    largest, text = 0.0, None
    for name, column in _floats(batch).items():
        sizes = np.abs(column)
        usual, size = float(np.median(sizes)), float(sizes.max())
        if size > max(largest, min(ABSURD, 1e6 * max(1.0, usual))):
            where = np.unravel_index(sizes.argmax(), sizes.shape)
            largest, value = size, float(column[where])
            text = f"the batch was finite; its largest value: {name} {value:g}{_maker(batch, np.array(where))}"
    return text


def _floats(batch: State) -> State:
    return {name: column for name, column in batch.items() if column.dtype.kind == "f" and column.size}


def _maker(batch: State, where: Array) -> str:
    """Whose value it is, at this index of a column."""
    if "source" not in batch:
        return ""
    source = batch["source"]
    worker, env = divmod(int(source[tuple(where[: source.ndim])]), 2**16)
    return f" from worker {worker} env {env}"
