"""Checks a yaml option of the user's own: its lines are answered as the command line's are, with file and line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.errors import UsageError
from drl_cli.runtime.config import Config
from drl_cli.settings.conf import default, option_file, unreadable
from drl_cli.settings.settings import all_keys, config_class, convert, fields, unknown_key

PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)


def check_file(file: Path, group: str, algo: type[AlgoConfig] | None) -> list[str]:
    """What is wrong in the file of a group's option, a line each: what is no yaml, keys and plain values."""
    try:
        text = file.read_text()
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        return [unreadable(file, error)]
    except (OSError, UnicodeDecodeError) as error:
        return [f"{file}: can't be read: {error}"]
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        return [f"{file}:{node.start_mark.line + 1}: must hold key: value"]
    package = PACKAGE.search(text)
    prefix = "" if package and package[1] == "_global_" else f"{package[1] if package else group}."
    kind = algo or config_class(default("algo"))
    keys = all_keys(kind)
    lines, seen = [], dict[str, int]()
    has_defaults = False
    for key, value in _leaves(node, prefix, keys):
        at = f"{file}:{value.start_mark.line + 1}"
        if key in seen:
            lines.append(f"{at}: {key} is given twice, in line {seen[key]}, too")
        seen[key] = value.start_mark.line + 1
        if key == f"{prefix}defaults" or key.startswith("hydra"):
            has_defaults |= key == f"{prefix}defaults"
        elif not any(key == known or key.startswith(f"{known}.") for known in _free(keys)):
            lines += [f"{at}: {problem}" for problem in _problems(key, value, kind, keys)]
    if prefix == f"{group}." and not has_defaults and group in fields(Config) and group not in ("algo", "replay"):
        needed = [key for key in keys if key.startswith(prefix) and key not in seen]
        names = ", ".join(key.removeprefix(prefix) for key in needed if keys[key] is not None)
        if names:
            model = option_file(group, default(group)) if group != "mode" else None
            lines.append(f"{file}: lacks {names}; copy {'them' if len(needed) > 1 else 'it'} from {model}")
    return lines


def algorithm_of(option: str) -> str:
    """The algorithm of an option of the group algo: of a yaml the `name` in it, or in that which its defaults name."""
    for _ in range(9):  # a yaml may take another as its defaults
        file = option_file("algo", option)
        if file is None:
            return option
        try:
            node = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise UsageError(unreadable(file, error)) from error
        content: dict[str, Any] = node if isinstance(node, dict) else {}
        inner = content.get("algo")
        name = (inner if isinstance(inner, dict) else content).get("name")
        if name is not None:
            return str(name)
        entries = [entry for entry in content.get("defaults") or [] if isinstance(entry, str) and entry != "_self_"]
        if not entries:
            return option
        option = entries[0].partition("@")[0].removeprefix("/algo/")
    return option


def _leaves(node: yaml.MappingNode, prefix: str, keys: dict[str, object]) -> Iterator[tuple[str, yaml.Node]]:
    """The values in a mapping and those within it, by dotted key."""
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        is_value = key in keys and key in _free(keys)
        if isinstance(value, yaml.MappingNode) and not is_value:
            yield from _leaves(value, f"{key}.", keys)
        else:
            yield key, value


def _free(keys: dict[str, object]) -> set[str]:
    """Keys below which any key may be."""
    return {key for key, kind in keys.items() if str(kind).startswith("collections.abc.Mapping")}


def _problems(key: str, node: yaml.Node, algo: type[AlgoConfig], keys: dict[str, object]) -> list[str]:
    if key not in keys:
        return [unknown_key(key, algo)]
    value = yaml.SafeLoader("").construct_object(node, deep=True)
    if value == "???" or "${" in str(value):
        return []
    problems: list[str] = []
    convert(value, keys[key], key, problems, algo)
    return problems
