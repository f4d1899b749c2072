"""Space: what a search may choose from, by key of the config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = float | int | str


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, both included; `is_log`: even in their logarithm."""

    low: float
    high: float
    is_log: bool = False
    is_int: bool = False
    step: int = 1

    @property
    def corners(self) -> list[Value]:
        """Its ends, and a number between them that is not whole where it need not be."""
        if self.is_int:
            return [int(self.low), int(self.high)]
        return [self.low, self.high, self.low + (self.high - self.low) * (3 - 5**0.5) / 2]

    def distribution(self) -> Any:
        """As Optuna has it. Any: Optuna is not typed here."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_int:
            return IntDistribution(int(self.low), int(self.high), self.is_log, self.step)
        return FloatDistribution(self.low, self.high, self.is_log)


@dataclass(frozen=True)
class Choice:
    """One of these values, each as it is typed."""

    values: tuple[str, ...]

    @property
    def corners(self) -> list[Value]:
        """All of them."""
        return list(self.values)

    def distribution(self) -> Any:
        """As Optuna has it. Any: Optuna is not typed here."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)


Space: TypeAlias = Mapping[str, Interval | Choice]


def typed(values: Mapping[str, Value]) -> list[str]:
    """The overrides that give a run these values; numbers have six digits."""
    return [f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()]


def corners(space: Space) -> list[list[str]]:
    """Overrides with which every end of every key comes up once, the other keys at their first."""
    first = {key: domain.corners[0] for key, domain in space.items()}
    points = [first | {key: value} for key, domain in space.items() for value in domain.corners]
    return [list(point) for point in dict.fromkeys(tuple(typed(point)) for point in points)]
