"""The jobs of a sweep's command line, by Hydra's grammar: 1,2,3 and choice(...), range(...), glob(...)."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from drl_cli.errors import UsageError
from drl_cli.settings.command_line import OVERRIDE, with_free_keys
from drl_cli.settings.conf import groups, options
from drl_cli.settings.space import Choice, Interval

PLAIN = re.compile(r"[\w./:@+-]+")


def jobs(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job, in the order of nested loops, the last key the fastest; raises UsageError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, choices, problems = OverridesParser.create(), [], []
    for text in overrides:
        try:
            (parsed,) = parser.parse_overrides(with_free_keys([text]))
            choices.append(_values(text, parsed))
        except HydraException:
            problems.append(
                f"{text}: can't be read; a sweep is a,b,c or choice(a,b), range(1,4) or, of groups, glob(*)"
            )
        except ValueError as error:
            problems.append(f"{text}: {error}")
    if problems:
        raise UsageError(problems)
    return [list(job) for job in itertools.product(*choices)]


def space(overrides: Sequence[str]) -> tuple[list[str], dict[str, Interval | Choice]]:
    """The overrides that have one value, and by key what the others may be; raises UsageError.

    interval(a,b) and int(interval(a,b)) are numbers, with tag(log, ...) even in their logarithm; range(a,b) are whole
    numbers; a,b,c and choice(a,b,c) are choices.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, fixed, found, problems = OverridesParser.create(), [], {}, []
    for text in overrides:
        try:
            (parsed,) = parser.parse_overrides(with_free_keys([text]))
            if parsed.is_sweep_override():
                found[text.partition("=")[0]] = _domain(text, parsed)
            else:
                fixed.append(text)
        except HydraException:
            problems.append(
                f"{text}: can't be read; a search takes interval(a,b), tag(log,interval(a,b)), int(interval(a,b)), "
                "range(a,b) and choice(a,b)"
            )
        except ValueError as error:
            problems.append(f"{text}: {error}")
    if problems:
        raise UsageError(problems)
    return fixed, found


def _domain(text: str, parsed: Any) -> Interval | Choice:
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep

    value = parsed.value()
    tags = set(getattr(value, "tags", ()))
    if unknown := tags - {"log"}:
        raise ValueError(f"no tag '{min(unknown)}': log is the only one")
    if isinstance(value, IntervalSweep):
        is_int = isinstance(value.start, int)
        if value.start is None or value.end is None or not value.start < value.end:
            raise ValueError("an interval goes from a number to a higher one")
        if "log" in tags and value.start <= 0:
            raise ValueError("an interval that is even in its logarithm begins above 0")
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
    """The override for each of its values. Any: Hydra's Override."""
    match = OVERRIDE.fullmatch(text)
    assert match is not None, "checked before"
    key = text.partition("=")[0]
    if not parsed.is_sweep_override():
        return [text]
    from hydra.core.override_parser.types import Glob, IntervalSweep

    if isinstance(parsed.value(), IntervalSweep):
        raise ValueError("an interval is for a search: hpo=random or hpo=tpe; a sweep takes a,b,c or range(...)")
    if isinstance(parsed.value(), Glob):
        if match["key"] not in groups():
            raise ValueError(f"glob is for groups ({', '.join(groups())})")
        values = parsed.value().filter(options(match["key"]))
    else:
        values = [_text(value) for value in parsed.sweep_iterator()]
    if not values:
        raise ValueError("no value")
    return [f"{key}={value}" for value in values]


def _text(value: Any) -> str:
    """As it can be typed again: Hydra would put a backslash before each colon."""
    from hydra.core.override_parser.types import Override

    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    text = str(Override._get_value_element_as_str(value))
    return text.lower() if isinstance(value, bool) else text


def parse(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the key and the value of each override, the value with its Python type."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [(override.key_or_group, override.value()) for override in parsed]
