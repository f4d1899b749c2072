"""Old names that still work: for one minor version, each prints a warning with its new name (docs/compatibility.md).

The minor version after that removes the entries here. It moves those of KEYS to utils/names.yaml, so that the error
for an old key names the new one. The option of a command has its old name as `was` in cli/command.py's `option`. A
command that goes away stays in pyproject.toml, with a function that calls `warn` and then the new command.
"""

import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from drl_cli.utils.shown import print

KEYS: dict[str, str] = {}
"""The new name of a key, as `algo.lr`, or of an option, as `algo=sac`, by its old name."""
NAMES: dict[str, str] = {}
"""The new name of a Python name, by its old name with the module: `drl_cli.api.Old` has the new name `New`."""


@cache  # one warning, although a command reads its words more than once
def warn(old: str, new: str) -> None:
    """Print that a name has changed."""
    print(f"warning: {old} is now {new}; the next minor version will refuse {old}", file=sys.stderr)


def new_key(name: str) -> str:
    """Return the present name of a key or option. Warn if `name` is its old name."""
    if name in KEYS:
        warn(name, KEYS[name])
    return KEYS.get(name, name)


def new_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with new names of keys, and of the options of groups."""
    return [_new_word(word) for word in words]


def _new_word(word: str) -> str:
    typed, equals, text = word.partition("=")
    key = typed.lstrip("+~")
    name = new_key(key)
    options = [new_key(f"{name}={option}").removeprefix(f"{name}=") for option in text.split(",")]
    return f"{typed.removesuffix(key)}{name}{equals}{','.join(options)}"


def with_new_names(config: Mapping[str, Any], typed: Collection[str] = ()) -> dict[str, Any]:
    """Return a config as plain values with new names of keys. A new name that the user typed keeps its value."""
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for old, new in KEYS.items():
        section, name = _place(found, old)
        if name in section:
            warn(old, new)
            value = section.pop(name)
            section, name = _place(found, new)
            section[name] = section[name] if new in typed else value
    return found


def _place(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the group in which a key is, and the key's name there."""
    group, _, name = key.rpartition(".")
    section = config.get(group) if group else config
    return (section if isinstance(section, dict) else {}), name


def new_attribute(module: str, name: str) -> Any:  # Any: the attributes of a module have no common type
    """Return the attribute of a module that has a new name, for the module's `__getattr__`. Raise AttributeError."""
    if (old := f"{module}.{name}") not in NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    text = f"{old} is now {module}.{NAMES[old]}; the next minor version will not have {name}"
    warnings.warn(text, FutureWarning, stacklevel=3)
    return getattr(sys.modules[module], NAMES[old])
