"""key=value options of the commands that need no Hydra: typed by a dataclass, wrong ones named all at once."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.cli.errors import UsageError, did_you_mean
from drl_cli.cli.settings import convert, fields

T = TypeVar("T")


def parse(args: Sequence[str], kind: type[T], positional: str | None = None) -> T:
    """An instance of `kind` from `key=value` arguments; a bare word is the value of `positional`."""
    hints, values, problems = fields(kind), {}, []
    for arg in args:
        key, equals, text = arg.partition("=")
        if not equals and positional:
            key, text = positional, arg
        if key not in hints:
            problems.append(f"{key}: no such option.{did_you_mean(key, hints)}   options: {', '.join(hints)}")
            continue
        try:
            value: Any = text if hints[key] in (str, str | None) else yaml.safe_load(text)
        except yaml.YAMLError:
            problems.append(f"{key}: can't read {text!r}")
            continue
        values[key] = convert(value, hints[key], key, problems, AlgoConfig)
    required = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # every caller passes a dataclass
        if field.default is dataclasses.MISSING and field.name not in values
    ]
    problems += [f"{name}: is missing, say {name}=..." for name in required]
    if problems:
        raise UsageError(problems)
    return kind(**values)


def usage(command: str, kind: type[Any], what: str) -> str:
    """Help text: the command, what it does, its options with their defaults."""
    lines = [f"{command} [key=value ...]   {what}", ""]
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" (default {field.default})"
        lines.append(f"  {field.name:<12} {field.metadata.get('help', '')}{default}")
    return "\n".join(lines)
