"""Consent: what the files of a run, a sweep or a dataset may import or reach, because the user agreed to it.

The user agrees by typing the module, by `trust=true`, or by starting the run on this machine. The memory of consents is
in the user's own state folder, because the folder of a run may come from somebody else.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.lookup import algorithms, installed
from drl_cli.envs.config import wrapper_path
from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.utils.files import read_file, replace_file
from drl_cli.utils.hydra_grammar import listed, unquoted
from drl_cli.utils.outside import folder_of, look_in

log = logging.getLogger(__name__)

MODULES = (
    *("env.id", "env.wrappers", "algo.name", "network.torso", "optimizer.name", "reward.name", "replay.sampler"),
    *("manage.evaluator", "logger.recorders"),
)
"""The keys whose values may name a module to import."""
ADDRESSES = {"ray.address": None, "logger.mlflow": "none"}
"""The keys whose values may name a server, with the value that names none. A Ray cluster can run code here."""
ARGUMENTS = ("env.kwargs", "manage.env_kwargs", "optimizer.kwargs", "env.wrappers")
"""The keys with arguments of classes. A consent covers them, too."""
TYPED = {"env": "env.id", "network": "network.torso", "reward": "reward.name", "algo": "algo.name"}
"""The groups whose option may be a module, and the key that has the module."""
REFUSED = {"hydra", "defaults", "_target_"}


def consent(file: Path, node: Mapping[str, Any], *, trust: bool = False, typed: Sequence[str] = ()) -> None:
    """Raise UsageError unless the user agreed to everything that a file asks for. `node` is the content of the file.

    Words of command lines in it, as in the record of a sweep, are below the key `words`. `typed` are the words of the
    command line, whose modules the user agrees to. With `trust`, the user agrees to all.
    """
    asked, links = asks(node), links_outside(file.parent)
    if not asked and not links:
        return
    if standard := [ask for ask in asked if module_of(ask).partition(".")[0] in sys.stdlib_module_names]:
        raise UsageError(f"{file}: {standard[0]}: is a module of Python, which has nothing for a run")
    contents = _contents(node, asked, links)
    memory = _memory(file)
    agreed = {module_of(word) for word in typed_asks(typed)}
    if memory is not None and memory["contents"] == contents:
        for folder in memory["folders"]:
            look_in(folder)
    elif trust or (not links and {module_of(ask) for ask in asked} <= agreed):
        look_in(os.getcwd())
        _write(file, contents, asked)
    else:
        changed = "" if memory is None else ", which has changed since you agreed"
        what = f"{file} names {', '.join(asked)}{changed}; this runs its author's code as you"
        if not asked:
            what = f"{file.parent} has a link that leads out of it{changed}: {links[0]}"
        raise UsageError(f"{what}. If you trust the author, say trust=true")


def trusts(words: Sequence[str]) -> bool:
    """Return whether a command line has `trust=true`."""
    return any(word.lower() == "trust=true" for word in words)


def remember(file: Path, node: Mapping[str, Any]) -> None:
    """Note that the user made this file with this content, so that later commands do not ask."""
    asked, links = asks(node), links_outside(file.parent)
    if asked or links:
        _write(file, _contents(node, asked, links), asked)


def asks(node: Mapping[str, Any]) -> list[str]:
    """Return the modules and addresses that a config names, as `key=value`, without those that drl-cli ships.

    Of words of command lines, return what they name, and those that are flags, interpolations or Hydra's own settings.
    """
    found = [(key, text) for key in MODULES for text in _texts(_at(node, key))]
    names = [f"{key}={text}" for key, text in found if _is_foreign(key, text)]
    # The arguments of a known wrapper may name a file, as those of gymnasium's RecordVideo do.
    wrappers = _at(node, "env.wrappers") or ()
    names += [f"env.wrappers={wrapper_path(each)}" for each in wrappers if isinstance(each, Mapping)]
    names = list(dict.fromkeys(names))
    reached = [(key, _at(node, key)) for key in ADDRESSES]
    names += [f"{key}={value}" for key, value in reached if value not in (None, ADDRESSES[key])]
    words = [*dict.fromkeys(_texts(node.get("words")))]
    special = [word for word in words if word.startswith("-") or "${" in word or word.lstrip("+~").startswith("hydra")]
    return names + sorted({*special, *typed_asks(words)})


def typed_asks(words: Sequence[str]) -> list[str]:
    """Return the modules and addresses that the words of a command line name, as `asks` does."""
    found = []
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        key = TYPED.get(key, key)
        texts = listed(value) if key in MODULES else [unquoted(value)]
        found += [f"{key}={text}" for text in texts if key in ADDRESSES or (key in MODULES and _is_foreign(key, text))]
    return found


def module_of(ask: str) -> str:
    """Return the module of `key=module:Name`, or the whole text if the key names no module."""
    key, _, value = ask.partition("=")
    return value.partition(":")[0] if key in MODULES else ask


def read_run(file: Path) -> dict[str, Any]:
    """Return the values in a run's config.yaml. Raise UsageError (exit 8) if it is not plain.

    Interpolations, such as `${oc.env:HOME}`, and the sections that Hydra would act on are refused.
    """
    try:
        node: Any = yaml.safe_load(read_file(file))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: not readable ({error})", CHECKPOINT) from error
    if not isinstance(node, dict):
        raise UsageError(f"{file}: damaged, it holds no options", CHECKPOINT)
    if found := [str(key) for key in node if key in REFUSED]:
        raise UsageError(f"{file}: {found[0]}: a run's config has values only", CHECKPOINT)
    if found := [text for text in _texts(node) if "${" in text]:
        raise UsageError(f"{file}: {found[0]!r}: a run's config has values only, no interpolation", CHECKPOINT)
    return node


def links_outside(folder: Path) -> list[str]:
    """Return the links in a run's folder that lead out of it. Raise UsageError (exit 8) for a pipe or a device."""
    if not (folder / "run.json").exists():  # the folder of something else
        return []
    root, found = folder.resolve(), []
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                found.append(f"{path.relative_to(root)} -> {os.readlink(path)}")
            elif path.exists() and not (path.is_file() or path.is_dir()):
                raise UsageError(f"{path}: is a pipe or a device, and no file of a run", CHECKPOINT)
    return sorted(found)


def _is_foreign(key: str, text: str) -> bool:
    """Return whether a text is the name of a module that neither drl-cli nor a known environment package ships."""
    if key == "algo.name":
        return text not in algorithms() and text not in installed()
    if ":" not in text:
        return False
    return not (key in ("env.id", "env.wrappers") and text.partition(":")[0].partition(".")[0] in _env_packages())


def _env_packages() -> Collection[str]:
    from drl_cli.envs.catalog import known_packages  # imports gymnasium, which most commands do not need

    return known_packages()


def _at(node: Any, key: str) -> Any:
    """Return the value of a dotted key in nested mappings, or None. Any: the value of any key."""
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value. Any: plain values of yaml."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _contents(node: Mapping[str, Any], asked: Sequence[str], links: Sequence[str]) -> str:
    """Return a hash of everything to which the user agrees."""
    arguments = {key: _at(node, key) for key in ARGUMENTS}
    text = json.dumps([sorted(asked), sorted(links), arguments], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _file(file: Path) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "drl-cli" / "trusted" / f"{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:32]}.json"


_here: dict[Path, dict[str, Any]] = {}  # consents of this process, which count even if they can't be written


def _memory(file: Path) -> dict[str, Any] | None:
    path = _file(file)
    if path in _here:
        return _here[path]
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(read_file(path))
        return {name: content[name] for name in ("file", "contents", "folders")}
    return None


def _write(file: Path, contents: str, asked: Sequence[str]) -> None:
    modules = [module_of(ask) for ask in asked if ask.partition("=")[0] in MODULES]
    folders = [str(folder) for module in modules if (folder := folder_of(module)) is not None]
    path, memory = _file(file), {"file": str(file.resolve()), "contents": contents, "folders": sorted({*folders})}
    _here[path] = memory
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(memory).encode())
    except OSError as error:
        log.warning("later commands will ask for trust=true for %s: %s", file.parent, error)
