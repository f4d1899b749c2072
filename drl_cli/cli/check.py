"""Checks a drl-train command line before Hydra is even imported, so that a typo is answered at once."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig, algorithms, load_algorithm
from drl_cli.cli.errors import UsageError, did_you_mean
from drl_cli.cli.settings import all_keys, convert, unknown_algorithm, unknown_key

OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(=(?P<value>.*))?", re.DOTALL)


def conf_dir() -> Path:
    """The yaml files: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def options(group: str) -> list[str]:
    """Names of the yaml files in a group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def groups() -> list[str]:
    """Names of the folders in conf."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def check_command(args: Sequence[str]) -> None:
    """Raise UsageError with every wrong group, key and plain value on the command line."""
    overrides = [arg for arg in args if not arg.startswith("-")]
    parsed = [match for arg in overrides if (match := OVERRIDE.fullmatch(arg))]
    is_sweep = bool({"-m", "--multirun"} & set(args))
    repeats = any(re.match(r"(--config-(path|name|dir)|-c[pnd])\b", arg) for arg in args)
    problems = [f"'{arg}' is not of the form key=value" for arg in overrides if not OVERRIDE.fullmatch(arg)]
    chosen: dict[str, str] = {}
    for match in parsed:
        key, value = match["key"], match["value"]
        if key in groups() and match["sign"] is None:
            values = value.split(",") if is_sweep and value else [value or ""]
            chosen[key] = values[0]
            if not repeats:
                problems += [line for name in values if (line := unknown_option(key, name.strip("'\" ")))]
    name = chosen.get("algo", _default_algorithm())
    if not repeats and name in algorithms():
        algo = load_algorithm(name).Config
        for match in parsed:
            if match["key"] not in groups() and not match["key"].startswith("hydra"):
                problems += check_value(match["key"], match["value"], is_sweep, algo)
    if problems:
        raise UsageError(problems)


def unknown_option(group: str, name: str) -> str | None:
    """The error line for a group's option that does not exist; None when it does."""
    known = options(group)
    if name in known:
        return None
    if group == "algo":
        return unknown_algorithm(name)
    if group == "env":
        return unknown_env(name)
    kind = {"tuned": "set of tuned values"}.get(group, f"{group} option")
    return f"no {kind} '{name}'.{did_you_mean(name, known)}   available: {', '.join(known)}"


def unknown_env(name: str) -> str | None:
    """The error line for an environment that neither we, nor Gymnasium, nor a named module has; None when it exists."""
    from drl_cli.envs.make import exists, registered

    if exists(name):
        return None
    if ":" in name:
        return f"no environment '{name}': there is no module '{name.split(':')[0]}' to import"
    hint = did_you_mean(name, options("env"), 2) or did_you_mean(name, registered(), 2)
    return f"no environment '{name}'.{hint}"


def check_value(key: str, value: str | None, is_sweep: bool, algo: type[AlgoConfig]) -> list[str]:
    """Error lines for a key that does not exist or a plain value of the wrong type or out of range."""
    keys = all_keys(algo)
    if key not in keys:
        parent = key.rpartition(".")[0]
        is_free = any(
            key.startswith(f"{name}.") and not _is_group(kind) for name, kind in keys.items() if name in parent
        )
        return [] if is_free and "kwargs" in key else [unknown_key(key, algo)]
    if value is None or "${" in value or (is_sweep and re.search(r"[,(]", value)) or _is_group(keys[key]):
        return []
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        return []  # Hydra's own grammar; it says what is wrong
    problems: list[str] = []
    convert(parsed, keys[key], key, problems, algo)
    return problems


def _is_group(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _default_algorithm() -> str:
    defaults = yaml.safe_load((conf_dir() / "train.yaml").read_text())["defaults"]
    return next(str(entry["algo"]) for entry in defaults if isinstance(entry, dict) and "algo" in entry)
