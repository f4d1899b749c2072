"""Made: what an update of a trainer computed, in tensors, and the message with new priorities that follows from it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from drl_cli.algos.base import Update
from drl_cli.errors import AlgorithmRefused
from drl_cli.runtime.messages import UpdatePriority
from drl_cli.types import Array, Columns
from drl_cli.utils.lazy import torch


class Made(NamedTuple):
    """A result of `Algorithm.update`; `values` are its metrics, one tensor `[len(names)]`."""

    names: tuple[str, ...]
    values: "torch.Tensor"
    priorities: "torch.Tensor | None" = None
    steps: int = 1
    skipped: int = 0
    columns: "Mapping[str, torch.Tensor]" = MappingProxyType({})

    @classmethod
    def of(cls, update: Update) -> "Made":
        metrics = update.metrics
        values = torch.stack([*metrics.values()]) if metrics else torch.zeros(0)
        return cls((*metrics,), values, update.priorities, update.steps, update.skipped, dict(update.columns))


def new_values(
    trainer: int, row_ids: Array, updates: Sequence[Made], has_priorities: bool, batches: Columns
) -> UpdatePriority | None:
    """Return new priorities and columns for the rows of all updates that were made, or None if all were skipped.

    Raise AlgorithmRefused if the columns do not have the shapes of the columns of `batches` `[U, B, ...]`.
    """
    if has_priorities and any(update.steps and update.priorities is None for update in updates):
        raise ValueError("replay=prioritized needs priorities, and this algorithm gives none; say replay=uniform")
    made = [i for i, update in enumerate(updates) if update.steps]
    if not made:
        return None

    def stacked(values: "list[torch.Tensor]") -> Array:
        array: Array = torch.stack([value.detach() for value in values]).cpu().numpy()
        return array

    priorities = [update.priorities for update in updates if update.steps and update.priorities is not None]
    columns = {name: stacked([updates[i].columns[name] for i in made]) for name in updates[made[0]].columns}
    for name, values in columns.items():
        needed = batches[name].shape[1:] if name in batches else f"no column; it has {', '.join(batches)}"
        if values.shape[1:] != needed:
            raise AlgorithmRefused(f"algo: Update.columns: {name} has shape {values.shape[1:]}, the batch has {needed}")
    return UpdatePriority(trainer, row_ids[made], stacked(priorities) if has_priorities else None, columns)
