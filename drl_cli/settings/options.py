"""The `key=value` options of all commands except drl-train. A dataclass defines their names and types."""

import dataclasses
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeVar

import yaml

from drl_cli.errors import UsageError
from drl_cli.settings.build import Key, default_values, judge
from drl_cli.settings.value_types import MISSING, group_of
from drl_cli.utils.shown import print
from drl_cli.utils.spelling import did_you_mean, nearest

T = TypeVar("T")

WORDS = {
    "stochastic": ("deterministic", "greedy", "sample", "explore"),
    "max_steps": ("length", "video_length", "max_episode_steps", "horizon"),
    "live": ("render", "render_mode", "window", "gui"),
    "period_s": ("refresh", "interval", "every"),
    "limit": ("last", "head", "top", "count", "n"),
}
"""For each of our options, the words of other tools."""
VIDEO = (*WORDS["live"], "video", "record_video", "capture_video")
"""Words of other tools for showing a policy."""
FILES = ("output", "out", "output_file", "output_path", "file", "filename", "path", "save", "save_path", "dest")
"""Words of other tools for the file that a command writes."""


def parse(args: Sequence[str], kind: type[T], positional: str | None = None) -> T:
    """Return an instance of `kind` from `key=value` arguments. A bare word is the value of the key `positional`.

    `name=NAME` names runs if `positional` is `run` or `runs`, and counts as a bare word.

    A list of texts may be typed without brackets and quotes, or as several bare words. Raise UsageError with every
    problem.
    """
    types, values = group_of(kind).keys, dict[str, Any]()
    args, problems = without_flags(args, types)
    if problems:
        raise UsageError(problems)
    typed = list[tuple[str, str]]()
    for arg in args:
        name, equals, text = arg.partition("=")
        if positional in ("run", "runs") and name == "name" and name not in types:
            name, text, equals = positional, arg, ""  # runs by their name
        elif not equals and positional:
            name, text = positional, arg
        is_list = name in types and "[text, ...]" in types[name].forms
        typed += [(name, text)] if equals or not is_list else []  # a list may be several bare words
        if name not in types:
            problems.append(f"{name}: no such option.{_hint(name, kind)}   options: {', '.join(types)}")
        elif is_list:
            values[name] = (*(values.get(name, ()) if not equals else ()), *_items(text))
        else:
            forms = types[name].forms
            is_text = "text" in forms and not (text == "null" and "null" in forms)
            try:
                value: Any = text if is_text else yaml.safe_load(text)
                values[name] = judge(Key(name, types[name]), value)
            except yaml.YAMLError:
                problems.append(f"{name}: can't read {text!r}")
            except UsageError as error:
                problems += error.problems
    warn_of_repeats(typed)
    given = {arg.partition("=")[0] for arg in args} | values.keys()
    required = [name for name, default in default_values(kind).items() if default == MISSING]
    problems += [f"{name}: is missing, say {name}=..." for name in required if name not in given]
    if problems:
        raise UsageError(problems)
    return kind(**values)


def _hint(name: str, kind: type[Any]) -> str:
    """Return a sentence with the option that the user probably means, or with the place of the command's files."""
    types = group_of(kind).keys
    if option := other_word(name, types):
        return f" Did you mean {option}?"
    if name in FILES and hasattr(kind, "WRITES"):
        return f" {kind.WRITES}."
    if name in VIDEO and "run" in types and "live" not in types:
        return " drl-play run=RUN shows a policy."
    return did_you_mean(name, types)


def other_word(name: str, options: Container[str]) -> str | None:
    """Return the one of `options` for a word of another tool, or None."""
    return next((option for option, words in WORDS.items() if name in words and option in options), None)


def warn_of_repeats(pairs: Sequence[tuple[str, str]]) -> None:
    """Print a warning for each key that is given several times. The last value counts."""
    keys = [key for key, _ in pairs]
    for key, value in dict(pairs).items():
        if (times := keys.count(key)) > 1:
            print(f"warning: {key} is given {times} times; {key}={value} counts", file=sys.stderr)


def without_flags(args: Sequence[str], keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the words without flags such as `--episodes 5`, and an error line for each flag."""
    words, problems, rest, known = list[str](), list[str](), list(args), list(keys)
    while rest:
        arg = rest.pop(0)
        if not arg.startswith("-"):
            words.append(arg)
            continue
        flag, equals, value = arg.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if not equals and rest and "=" not in rest[0] and not rest[0].startswith("-"):
            value = rest.pop(0)
        near = name if name in known else next(iter(nearest(name, known)), None)
        say = f": options have no dashes; say {near}={value or '...'}" if near else f".   options: {', '.join(known)}"
        problems.append(f"no flag '{flag}'{say}")
    return words, problems


def _items(text: str) -> list[str]:
    """Return the items of a list of texts. Do not use yaml, which can't parse globs, because `*` begins an alias."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [item.strip(" '\"") for item in inner.split(",") if item.strip()]


def usage(command: str, kind: type[Any], what: str, examples: Sequence[str] = ()) -> str:
    """Return the help text: the command, what it does, its options with their defaults, and examples."""
    lines = [f"{command} [key=value ...]   {what}", ""]
    for field in dataclasses.fields(kind):
        is_empty = field.default is dataclasses.MISSING or field.default == ()
        default = "" if is_empty else f" (default {field.default})"
        lines.append(f"  {field.name:<12} {field.metadata.get('help', '')}{default}")
    return "\n".join([*lines, *([""] if examples else []), *(f"  {line}" for line in examples)])
