"""What a file format gives: recorded steps in the units of the environment."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.data.dataset import DatasetError
from drl_cli.types import Array, Columns

PART_BYTES = 1 << 24
"""A recording is read in parts of about this size."""


@dataclass(frozen=True)
class Steps:
    """Steps in a row. Observations and actions are arrays `[steps, ...]` by dotted path."""

    obs: Columns
    action: Columns
    next_obs: Columns


class Recording(ABC):
    """Recorded steps in order of time, in the units of the environment.

    `name` is what the user typed. `env` is the environment's id, and `spaces` has the spaces of its observations and
    actions, if they were recorded. With `has_mask`, observations have a mask that was in `info`. `provenance` is what
    drl-record wrote. `pieces` has the numbers of episodes whose beginning or end is missing. `stamp` is a text that
    changes with the observations and actions. `reward` (float64), `terminated` and `truncated` have all steps.
    """

    name: str
    env: str | None = None
    spaces: tuple[Any, Any] | None = None  # Any: spaces of Gymnasium
    has_mask = False
    reference: tuple[float, float] | None = None
    provenance: Mapping[str, Any] = {}  # Any: json
    pieces: Sequence[int] = ()
    stamp = ""
    reward: Array
    terminated: Array
    truncated: Array

    def __len__(self) -> int:
        return len(self.reward)

    @abstractmethod
    def _read(self, first: int, last: int) -> Steps:
        """Return the steps first..last-1 as new arrays."""

    def read(self, first: int, last: int) -> Steps:
        """Return the steps first..last-1 as new arrays. Raise DatasetError if a value is not finite."""
        steps = self._read(first, last)
        for kind, parts in (("observation", steps.obs), ("action", steps.action), ("next observation", steps.next_obs)):
            for path, part in parts.items():
                if part.dtype.kind == "f" and not np.isfinite(part).all():
                    bad = tuple(np.argwhere(~np.isfinite(part))[0])
                    where = f"{kind}{f' {path!r}' if path else ''} of step {first + bad[0]:,}"
                    raise DatasetError(f"{self.name}: the {where} has {part[bad]}")
        return steps

    def verify(self) -> None:
        """Raise DatasetError if the file is damaged in a way that `read` does not notice."""

    def parts(self) -> list[range]:
        """Return ranges of steps that cover the recording, each of about `PART_BYTES`."""
        steps = self.read(0, 1)
        row = sum(part.nbytes for parts in (steps.obs, steps.action, steps.next_obs) for part in parts.values())
        size = max(1, PART_BYTES // max(row, 1))
        return [range(first, min(first + size, len(self))) for first in range(0, len(self), size)]


def pieces_of(provenance: Mapping[str, Any]) -> list[int]:  # Any: json
    """Return the numbers of episodes whose beginning or end is missing."""
    return [int(number) for number in provenance.get("pieces", ())]


def closed(name: str, terminated: Array, truncated: Array) -> tuple[Array, Array]:
    """Return `truncated`, true also at the last step if the recording ends within an episode, and the episodes' ends.

    The ends are the indices after the last steps. Raise DatasetError if there are no steps.
    """
    if not len(terminated):
        raise DatasetError(f"{name} is empty: it has no steps")
    truncated = truncated & ~terminated
    truncated[-1] = not terminated[-1]
    return truncated, np.flatnonzero(terminated | truncated) + 1
