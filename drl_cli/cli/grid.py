"""The jobs of a sweep's command line, by Hydra's grammar: 1,2,3 and choice(...), range(...), glob(...)."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from drl_cli.cli.check import OVERRIDE, groups, options, with_free_keys
from drl_cli.cli.errors import UsageError

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
