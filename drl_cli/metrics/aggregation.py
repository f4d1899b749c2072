"""Aggregate the values that arrive between two reports."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


class Means:
    """Weighted means, by name, of the values added since the last `take`."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)

    def add(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        """Add values. Each value is the mean of `weight` observations."""
        for name, value in values.items():
            self._sums[name] += value * weight
            self._weights[name] += weight

    def take(self) -> dict[str, float]:
        means = {name: total / self._weights[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._weights.clear()
        return means


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return the mean, min, max and median of the values as `<name>_mean` and so on, or {} without values."""
    array = np.asarray(list(values), np.float64)
    statistics = ("mean", "min", "max", "median")
    return {f"{name}_{key}": float(getattr(np, key)(array)) for key in statistics if len(array)}


def over_shards(stats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the statistics of several tables. Integers are counts and are summed; other numbers are averaged."""
    merged = {}
    for name in dict.fromkeys(name for part in stats for name in part):
        values = [part[name] for part in stats if name in part]
        total = sum(values)
        merged[name] = total if all(isinstance(value, int) for value in values) else total / len(values)
    return merged
