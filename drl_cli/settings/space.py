"""Space: what a search may choose from, by key of the config."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Value: TypeAlias = float | int | str

FACTORS = (0.8, 1.2)
"""By which a population moves a number (Jaderberg et al. 2017, population based training)."""


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

    def draw(self, rng: np.random.Generator) -> Value:
        """One of them at random."""
        low, high = (math.log(self.low), math.log(self.high)) if self.is_log else (self.low, self.high)
        number = float(rng.uniform(low, high))
        return self._within(math.exp(number) if self.is_log else number)

    def near(self, value: Value, rng: np.random.Generator) -> Value:
        """A value moved by one of FACTORS; where an interval has no sign, by that share of half its width."""
        factor, number = FACTORS[rng.integers(2)], float(value)
        moved = number * factor if self.low > 0 else number + (factor - 1) * (self.high - self.low) / 2
        if self.is_int and abs(moved - number) < self.step:
            moved = number + math.copysign(self.step, factor - 1)
        return self._within(moved)

    def _within(self, number: float) -> Value:
        number = float(min(max(number, self.low), self.high))
        if not self.is_int:
            return number
        most = (int(self.high) - int(self.low)) // self.step
        return int(self.low) + self.step * min(round((number - self.low) / self.step), most)


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

    def draw(self, rng: np.random.Generator) -> Value:
        """One of them at random."""
        return self.values[rng.integers(len(self.values))]

    def near(self, value: Value, rng: np.random.Generator) -> Value:
        """The one before or after, in the order in which they were typed."""
        place = self.values.index(str(value)) + (-1, 1)[rng.integers(2)]
        return self.values[min(max(place, 0), len(self.values) - 1)]


Space: TypeAlias = Mapping[str, Interval | Choice]


def domain(content: Mapping[str, Any]) -> Interval | Choice:
    """From its fields, as json has them."""
    return Choice(tuple(content["values"])) if "values" in content else Interval(**content)


def typed(values: Mapping[str, Value]) -> list[str]:
    """The overrides that give a run these values; numbers have six digits."""
    return [f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()]


def corners(space: Space) -> list[list[str]]:
    """Overrides with which every end of every key comes up once, the other keys at their first."""
    first = {key: domain.corners[0] for key, domain in space.items()}
    points = [first | {key: value} for key, domain in space.items() for value in domain.corners]
    return [list(point) for point in dict.fromkeys(tuple(typed(point)) for point in points)]
