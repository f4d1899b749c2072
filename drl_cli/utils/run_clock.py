"""RunClock, which measures the position of a run, and functions of this position."""

from typing import Literal, NamedTuple, Protocol, TypeAlias

Unit: TypeAlias = Literal["env_steps", "opt_steps"]
UNIT_TEXTS: dict[str, str] = {"env_steps": "env steps", "opt_steps": "updates"}


class HasCounts(Protocol):
    """The counters of a run: `env_steps` for the environment steps of all workers, and `opt_steps` for the updates."""

    @property
    def env_steps(self) -> int: ...

    @property
    def opt_steps(self) -> int: ...


class RunClock(NamedTuple):
    """Measures the position of a run in environment steps, or in updates (`opt_steps`) if the run has no workers.

    Schedules, and the periods of checkpoints and evaluations, use this position. The run ends at the position `total`.
    """

    unit: Unit = "env_steps"
    total: int = 1

    def of(self, counts: HasCounts) -> int:
        return counts.env_steps if self.unit == "env_steps" else counts.opt_steps

    @property
    def key(self) -> str:
        """The name of the option that sets `total`."""
        return "total_env_steps" if self.unit == "env_steps" else "total_updates"

    @property
    def text(self) -> str:
        """The unit in words, for messages."""
        return UNIT_TEXTS[self.unit]


def linear(count: int, start: float, end: float, length: int) -> float:
    """Interpolate linearly from `start` at count 0 to `end` at count `length`; larger counts give `end`."""
    return end if count >= length else start + (end - start) * (count / length)


def multiple_after(position: int, period: int) -> int:
    """Return the first multiple of `period` that is larger than `position`."""
    return period * (position // period + 1)
