"""A step of several environments, and the base class of all batches of environments."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvFault
from drl_cli.envs.faults import CallWatch
from drl_cli.types import Array, Columns, Episode, Obs, State, flat_columns

LEFT_OUT = frozenset({"TimeLimit.truncated", "reward", "terminated", "truncated", "elapsed_step", "env_id"})
"""Keys from Gymnasium's wrappers and from EnvPool that do not describe the episode."""

MOST = 64
"""Maximum number of recorded values per episode."""


@dataclass(frozen=True)
class Step:
    """One step of all environments, `[E, ...]`. If an episode ended, `next_obs` is its true final observation.

    `valid` is False for an environment that failed: it took no step, and a new episode has begun.
    `terminated` is also True if a life was lost but the episode continues (see `EnvBatch`).
    """

    reward: Array
    next_obs: Obs
    terminated: Array
    truncated: Array
    valid: Array

    def columns(self) -> Columns:
        """Return the fields as columns for a builder, with one column for each part of `next_obs`."""
        fields = vars(self)
        if isinstance(self.next_obs, np.ndarray):
            return fields
        rest = {name: column for name, column in fields.items() if name != "next_obs"}
        return {**rest, **flat_columns("next_obs", self.next_obs)}


class EnvsBase:
    """Base of batches of environments: finished episodes, faults, and the limit on rebuilds.

    `begun` lists the environments in which the last step began a new episode.
    """

    obs: Obs

    def __init__(self, seeds: Sequence[int], max_rebuilds: int) -> None:
        self.seeds, self.max_rebuilds = list(seeds), max_rebuilds
        self.episodes: list[Episode] = []
        self.faults: list[str] = []
        self.begun: list[int] = []
        self.calls = CallWatch()
        self._rebuilds, self._first_fault = 0, ""

    def take_news(self) -> tuple[tuple[Episode, ...], tuple[str, ...]]:
        """Return the episodes that ended since the last call, and a line for each rebuild."""
        news = tuple(self.episodes), tuple(self.faults)
        self.episodes, self.faults = [], []
        return news

    def _count_rebuild(self, line: str, cause: BaseException | None) -> str:
        """Count a rebuild, needed because of the fault `line`. Return the count as text.

        Raise EnvFault if no rebuild is left.
        """
        self._first_fault = self._first_fault or line
        if self._rebuilds >= self.max_rebuilds:
            before = "" if self._first_fault == line else f"; the first fault was in {self._first_fault}"
            raise EnvFault(f"{line}; no rebuild is left (worker.max_restarts={self.max_rebuilds}){before}") from cause
        self._rebuilds += 1
        return f"{self._rebuilds}/{self.max_rebuilds} (worker.max_restarts)"

    def _shared_state(self) -> State:
        return {
            **{name: part.copy() for name, part in flat_columns("obs", self.obs).items()},
            "seeds": np.array(self.seeds),
            "rebuilds": np.array([self._rebuilds]),
            "first_fault": np.frombuffer(self._first_fault.encode(), np.uint8),
        }

    def _load_shared_state(self, state: State) -> None:
        """Restore the result of `_shared_state`, except `obs`.

        Raise ValueError if the state has another number of environments.
        """
        saved, size = len(state["seeds"]), len(self.seeds)
        if saved != size:
            raise ValueError(f"the saved worker has {saved} environments, this one has {size} (worker.envs)")
        self.seeds = state["seeds"].tolist()
        self._rebuilds, self._first_fault = int(state["rebuilds"].item()), state["first_fault"].tobytes().decode()


def numbers(info: Any) -> dict[str, float]:  # Any: whatever the environment returned
    """Return the first MOST finite numbers and booleans of an info, by name.

    Names in LEFT_OUT and names that start with an underscore (flags of vector environments) are skipped, and so are all
    values that are not scalars, such as the mappings `episode` and `final_info`.
    """
    found: dict[str, float] = {}
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(name, str) or name.startswith("_") or name in LEFT_OUT or not name.isprintable():
            continue
        number = _number(value)
        if number is not None and math.isfinite(number) and len(found) < MOST:
            found[name] = number
    return found


def _number(value: Any) -> float | None:
    """Return a scalar as a float, or None for any other value."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:  # an int too large for a float
        return None
