"""The values that a sweep or a search tries, in Hydra's grammar: a,b choice(...) range(...) glob(...) interval(...).

A sweep runs every combination of the values. A search draws from a `Space`: an `Interval` or a `Choice` for each key.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from drl_cli.errors import UsageError
from drl_cli.settings.command_line import for_hydra
from drl_cli.settings.conf import groups, options

T = TypeVar("T")
Value: TypeAlias = float | int | str

FACTORS = (0.8, 1.2)
"""To explore, population based training multiplies a number by one of these factors (Jaderberg et al. 2017)."""
PLAIN = re.compile(r"[\w./:@+-]+")
"""A text that needs no quotes on a command line."""


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, both included. With `is_log`, draws are uniform in the logarithm."""

    low: float
    high: float
    is_log: bool = False
    is_int: bool = False
    step: int = 1

    @property
    def corners(self) -> list[Value]:
        """Return both ends and, for real numbers, a number in between that is not an integer."""
        if self.is_int:
            return [int(self.low), int(self.high)]
        return [self.low, self.high, self.low + (self.high - self.low) * (3 - 5**0.5) / 2]

    def distribution(self) -> Any:
        """Return Optuna's distribution. The type is Any, because only searches import Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_int:
            return IntDistribution(int(self.low), int(self.high), self.is_log, self.step)
        return FloatDistribution(self.low, self.high, self.is_log)

    def draw(self, rng: np.random.Generator) -> Value:
        low, high = (math.log(self.low), math.log(self.high)) if self.is_log else (self.low, self.high)
        number = float(rng.uniform(low, high))
        return self._clipped(math.exp(number) if self.is_log else number)

    def near(self, value: Value, rng: np.random.Generator) -> Value:
        """Return the value times one of FACTORS. If `low` <= 0, return the value moved by a tenth of the width."""
        factor, number = FACTORS[rng.integers(2)], float(value)
        moved = number * factor if self.low > 0 else number + (factor - 1) * (self.high - self.low) / 2
        if self.is_int and abs(moved - number) < self.step:
            moved = number + math.copysign(self.step, factor - 1)
        return self._clipped(moved)

    def _clipped(self, number: float) -> Value:
        number = float(min(max(number, self.low), self.high))
        if not self.is_int:
            return number
        most = (int(self.high) - int(self.low)) // self.step
        return int(self.low) + self.step * min(round((number - self.low) / self.step), most)


@dataclass(frozen=True)
class Choice:
    """A choice between these values, each as the user typed it."""

    values: tuple[str, ...]

    @property
    def corners(self) -> list[Value]:
        return list(self.values)

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def draw(self, rng: np.random.Generator) -> Value:
        return self.values[rng.integers(len(self.values))]

    def near(self, value: Value, rng: np.random.Generator) -> Value:
        """Return the choice typed before or after `value`, at random, or `value` if there is none on that side."""
        place = self.values.index(str(value)) + (-1, 1)[rng.integers(2)]
        return self.values[min(max(place, 0), len(self.values) - 1)]


MOST_VALUES = 1_000_000
"""Values of one key that are counted; a range with more is not read to its end."""
Space: TypeAlias = Mapping[str, Interval | Choice]


def domain(content: Mapping[str, Any]) -> Interval | Choice:
    """Return the interval or the choice that has these fields, which were read from json."""
    return Choice(tuple(content["values"])) if "values" in content else Interval(**content)


def typed(values: Mapping[str, Value]) -> list[str]:
    """Return the overrides that set these values. Round numbers to six digits."""
    return [f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()]


def corners(space: Space) -> list[list[str]]:
    """Return a list of overrides for each corner of each key. The other keys stay at their first corner."""
    first = {key: domain.corners[0] for key, domain in space.items()}
    points = [first | {key: value} for key, domain in space.items() for value in domain.corners]
    return [list(point) for point in dict.fromkeys(tuple(typed(point)) for point in points)]


def jobs(overrides: Sequence[str], max_jobs: int = MOST_VALUES) -> list[list[str]]:
    """Return the overrides of each job of a sweep, in the order of nested loops. Raise UsageError, also if too many."""
    forms = "a sweep is a,b,c or choice(a,b), range(1,4) or, of groups, glob(*)"
    values = _parsed(overrides, _values, forms)
    count = math.prod(map(len, values))
    if count > max_jobs:
        number = f"more than {MOST_VALUES:,}" if any(len(each) > MOST_VALUES for each in values) else f"{count:,}"
        raise UsageError(f"this sweep has {number} jobs, and sweep.max_jobs={max_jobs} is the most; name fewer values")
    return [list(job) for job in itertools.product(*values)]


def space(overrides: Sequence[str]) -> tuple[list[str], dict[str, Interval | Choice]]:
    """Return the overrides that have one value, and the space of the keys that have several values. Raise UsageError.

    `interval(a,b)`, `int(interval(a,b))` and `range(a,b)` are intervals, and `tag(log, ...)` makes an interval
    logarithmic. `a,b,c` and `choice(a,b,c)` are choices.
    """
    forms = "a search takes interval(a,b), tag(log,interval(a,b)), int(interval(a,b)), range(a,b) and choice(a,b)"
    domains = _parsed(overrides, _domain, forms)
    pairs = [*zip(overrides, domains, strict=True)]
    return (
        [text for text, found in pairs if found is None],
        {text.partition("=")[0]: found for text, found in pairs if found is not None},
    )


def parse(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the key and the value of each override. A value has its Python type."""
    return _parsed(overrides, lambda _, parsed: (parsed.key_or_group, parsed.value()), "")


def _parsed(overrides: Sequence[str], read: Callable[[str, Any], T], forms: str) -> list[T]:
    """Parse each override with Hydra. Return `read(override, parsed)` for each. Raise UsageError with all problems."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, found, problems = OverridesParser.create(), list[T](), list[str]()
    for text in overrides:
        try:
            (parsed,) = parser.parse_overrides(for_hydra([text]))
            found.append(read(text, parsed))
        except HydraException:
            problems.append(f"{text}: can't be read; {forms}")
        except ValueError as error:
            problems.append(f"{text}: {error}")
    if problems:
        raise UsageError(problems)
    return found


def _domain(text: str, parsed: Any) -> Interval | Choice | None:
    """Return the interval or choice of an override, or None for a single value. `parsed` is Hydra's Override."""
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep

    if not parsed.is_sweep_override():
        return None
    value = parsed.value()
    tags = set(getattr(value, "tags", ()))
    if unknown := tags - {"log"}:
        raise ValueError(f"no tag '{min(unknown)}': log is the only one")
    if isinstance(value, IntervalSweep):
        is_int = isinstance(value.start, int)
        if value.start is None or value.end is None or not value.start < value.end:
            raise ValueError("an interval goes from a number to a higher one")
        if "log" in tags and value.start <= 0:
            raise ValueError("a logarithmic interval begins above 0")
        return Interval(value.start, value.end, "log" in tags, is_int)
    if tags:
        raise ValueError("tag(log, ...) is for an interval")
    if isinstance(value, RangeSweep):
        numbers = list(value.range())
        if len(numbers) < 2 or not all(isinstance(number, int) for number in numbers) or value.step < 0:
            raise ValueError("a range has two whole numbers at least")
        return Interval(numbers[0], numbers[-1], is_int=True, step=int(value.step))
    return Choice(tuple(dict.fromkeys(choice.partition("=")[2] for choice in _values(text, parsed))))


def _values(text: str, parsed: Any) -> list[str]:
    """Return one override `key=value` for each value in `text`. `parsed` is Hydra's Override."""
    if not parsed.is_sweep_override():
        return [text]
    from hydra.core.override_parser.types import Glob, IntervalSweep

    if isinstance(parsed.value(), IntervalSweep):
        raise ValueError("an interval is for a search: hpo=random or hpo=tpe; a sweep takes a,b,c or range(...)")
    if isinstance(parsed.value(), Glob):
        if parsed.key_or_group not in groups():
            raise ValueError(f"glob is for groups ({', '.join(groups())})")
        values = parsed.value().filter(options(parsed.key_or_group))
    else:
        values = [_text(value) for value in itertools.islice(parsed.sweep_iterator(), MOST_VALUES + 1)]
    if not values:
        raise ValueError("no value")
    return [f"{text.partition('=')[0]}={value}" for value in values]


def _text(value: Any) -> str:
    """Return a value as the user can type it. Hydra's function would put a backslash before each colon."""
    from hydra.core.override_parser.types import Override

    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    text = str(Override._get_value_element_as_str(value))
    return text.lower() if isinstance(value, bool) else text
