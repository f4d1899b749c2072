"""key=value options of the commands that need no Hydra: typed by a dataclass, wrong ones named all at once."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.errors import UsageError
from drl_cli.settings.settings import convert, fields
from drl_cli.utils.spelling import did_you_mean

T = TypeVar("T")


def parse(args: Sequence[str], kind: type[T], positional: str | None = None) -> T:
    """An instance of `kind` from `key=value` arguments; a bare word is the value of `positional`.

    Of a list of texts each bare word is an item; brackets and quotes around its items may be left out.
    """
    hints, values, problems = fields(kind), dict[str, Any](), list[str]()
    for arg in args:
        key, equals, text = arg.partition("=")
        if not equals and positional:
            key, text = positional, arg
        if key not in hints:
            problems.append(f"{key}: no such option.{did_you_mean(key, hints)}   options: {', '.join(hints)}")
            continue
        if hints[key] in (tuple[str, ...], tuple[str, ...] | None):
            values[key] = (*(values.get(key, ()) if not equals else ()), *_items(text))
            continue
        try:
            is_text = hints[key] is str or (hints[key] == str | None and text != "null")
            value: Any = text if is_text else yaml.safe_load(text)
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


def _items(text: str) -> list[str]:
    """The items of a list of texts. Not read as yaml, where `*` begins an alias."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [item.strip(" '\"") for item in inner.split(",") if item.strip()]


def usage(command: str, kind: type[Any], what: str) -> str:
    """Help text: the command, what it does, its options with their defaults."""
    lines = [f"{command} [key=value ...]   {what}", ""]
    for field in dataclasses.fields(kind):
        is_empty = field.default is dataclasses.MISSING or field.default == ()
        default = "" if is_empty else f" (default {field.default})"
        lines.append(f"  {field.name:<12} {field.metadata.get('help', '')}{default}")
    return "\n".join(lines)
