"""Path: the conditions on counts that an update's Python code has evaluated, such as `opt_steps % 2 == 0`.

A record of the update is only valid for counts that give the same outcomes. A probe is an integer that notes these
conditions:

    path = Path()
    opt_steps = Probe.of(path, 0, 6)          # the first count is 6
    if opt_steps % 2 == 0: ...                # path: counts[0] % 2 == 0 is True
    path.allows((8,)), path.allows((7,))      # True, False
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

SAMPLES = 2_000
"""The number of counts from which `Path.share` estimates a fraction."""
Compute = Callable[[Sequence[int]], Any]
"""Computes a value, such as the outcome of a condition, from counts."""


class Path:
    """Conditions on counts, each with the outcome that it had while the update was recorded."""

    def __init__(self) -> None:
        self._conditions: list[tuple[Compute, Any]] = []

    def note(self, compute: Compute, outcome: Any) -> None:
        """Add a condition: the counts have to give this outcome."""
        self._conditions.append((compute, outcome))

    def allows(self, counts: Sequence[int]) -> bool:
        """Return whether all conditions have the same outcome for these counts."""
        return all(compute(counts) == outcome for compute, outcome in self._conditions)

    def share(self) -> float:
        """Estimate the fraction of a run's updates that the path allows.

        The estimate tries the values 0 to SAMPLES - 1 of the first count. All other counts are 10^9, which is beyond
        every warm-up and schedule.
        """
        others = [10**9] * 8
        num_allowed = sum(self.allows((first, *others)) for first in range(SAMPLES))
        return num_allowed / SAMPLES


class Probe(int):
    """An integer, computed from counts, that notes on a path which conditions Python code evaluates with it.

    Sums, products and remainders of a probe and an integer are probes. A comparison notes its outcome on the path. Any
    other operation, such as a conversion to a float, notes the value itself. Then the path only allows counts that give
    this value.
    """

    _path: Path
    _compute: Compute

    @classmethod
    def of(cls, path: Path, index: int, value: int) -> Probe:
        """Return a probe of the count with this index."""
        return cls._make(path, lambda counts: counts[index], value)

    @classmethod
    def _make(cls, path: Path, compute: Compute, value: int) -> Probe:
        probe = cls(value)
        probe._path, probe._compute = path, compute
        return probe

    def _plain(self) -> int:
        return int.__int__(self)

    def note_value(self) -> int:
        """Return the value as a plain integer, and allow only counts with this value."""
        value = self._plain()
        self._path.note(self._compute, value)
        return value

    def __float__(self) -> float:
        return float(self.note_value())

    def __int__(self) -> int:
        return self.note_value()

    def __index__(self) -> int:
        return self.note_value()

    def __bool__(self) -> bool:
        outcome = self._plain() != 0
        self._path.note(lambda counts: bool(self._compute(counts)), outcome)
        return outcome

    __hash__ = int.__hash__


def _arithmetic(name: str) -> Callable[[Probe, Any], Any]:
    """Return a method of Probe that returns a probe for a plain integer, and otherwise a value that is noted."""
    of = getattr(operator, name.strip("_"))

    def method(self: Probe, other: Any) -> Any:
        if type(other) is not int:
            return of(self.note_value(), other.note_value() if isinstance(other, Probe) else other)
        return Probe._make(self._path, lambda counts: of(self._compute(counts), other), of(self._plain(), other))

    return method


def _comparison(name: str) -> Callable[[Probe, Any], Any]:
    """Return a method of Probe that notes its outcome on the path."""
    of = getattr(operator, name.strip("_"))

    def method(self: Probe, other: Any) -> Any:
        other = other.note_value() if isinstance(other, Probe) else other
        outcome = of(self._plain(), other)
        self._path.note(lambda counts: of(self._compute(counts), other), outcome)
        return outcome

    return method


def _other(name: str) -> Callable[..., Any]:
    """Return a method of Probe that notes the value, and computes with the plain integer."""

    def method(self: Probe, *args: Any) -> Any:
        return getattr(int, name)(self.note_value(), *args)

    return method


for _name in ("__add__", "__sub__", "__mul__", "__mod__", "__floordiv__"):
    setattr(Probe, _name, _arithmetic(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Probe, _name, _comparison(_name))
for _name in (
    *("__radd__", "__rsub__", "__rmul__", "__rmod__", "__rfloordiv__", "__truediv__", "__rtruediv__", "__pow__"),
    *("__rpow__", "__divmod__", "__rdivmod__", "__neg__", "__abs__", "__and__", "__or__", "__xor__", "__lshift__"),
    *("__rshift__", "__round__"),
):
    setattr(Probe, _name, _other(_name))
