"""The yaml files: ours are in conf/; those in the user's folders take precedence."""

import fnmatch
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.lookup import module_path
from drl_cli.errors import UsageError
from drl_cli.utils.outside import source_file

SEARCH_PATH = "hydra.searchpath"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is four times as fast, but not always installed

SECTION = re.compile(r"^((?:#.*\n)*)([^\s#][^\s:]*):(.*\n(?:(?: .*)?\n)*)", re.MULTILINE)
"""A section of conf/tuned/ALGO.yaml: the comment above it, its name, and its content."""

own_dirs: list[Path] = []
"""The user's folders with yaml files, in order of precedence. `read_command` sets the list."""


def conf_dir() -> Path:
    """Return the folder with our yaml files. In a checkout it is beside the package, in a wheel inside the package."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def option_file(group: str, name: str) -> Path | None:
    """Return the path of the yaml of a group's option, or None if there is none."""
    files = (place / group / f"{name}.yaml" for place in (*own_dirs, conf_dir()))
    return next((file for file in files if file.is_file()), None)


def sections(algo: str) -> dict[str, str]:
    """Return each section of conf/tuned/ALGO.yaml as the text of a yaml file, by its name, such as MinAtar-*."""
    file = conf_dir() / "tuned" / f"{algo}.yaml"
    found = SECTION.findall(file.read_text()) if file.is_file() else []
    return {name: f"# @package _global_\n{comment}{content}" for comment, name, content in found}


def tuned_section(option: str) -> tuple[str, str] | None:
    """Return the place and the text of the first section of conf/tuned/ALGO.yaml that holds for the option ALGO-ENV."""
    algo, _, env = option.partition("-")
    found = sections(algo).items()
    return next(((f"conf/tuned/{algo}.yaml, {name}", text) for name, text in found if fnmatch.fnmatch(env, name)), None)


def option_text(group: str, name: str) -> str | None:
    """Return the yaml text of a group's option, from its file or its section, or None if there is no such option."""
    file = option_path(group, name)
    if file is not None:
        return file.read_text()
    section = tuned_section(name) if group == "tuned" else None
    return section[1] if section is not None else None


def option_path(group: str, name: str) -> Path | None:
    """Return the path of an option's yaml, which for an algorithm may be beside the user's module, or None."""
    return algorithm_yaml(name) if group == "algo" else option_file(group, name)


def algorithm_yaml(name: str) -> Path | None:
    """Return the option's yaml, else conf/algo/MODULE.yaml or MODULE.yaml beside the user's module, else None."""
    if (option := option_file("algo", name)) is not None:
        return option
    path = module_path(name)
    source, file = source_file(path), f"{path.rpartition('.')[2]}.yaml"
    beside = [source.parent / "conf" / "algo" / file, source.parent / file] if source is not None else []
    return next((place for place in beside if place.is_file()), None)


def read_yaml(file: Path) -> Any:
    """Return the content of a yaml file. Raise yaml.YAMLError as the loader in Python does."""
    text = file.read_text()
    try:
        return yaml.load(text, LOADER)
    except yaml.YAMLError:
        return yaml.safe_load(text)


def bases(node: Mapping[str, Any]) -> list[str]:
    """Return the options that a yaml extends, which are the strings in its `defaults`."""
    entries = [entry for entry in node.get("defaults") or [] if isinstance(entry, str) and entry != "_self_"]
    return [entry.partition("@")[0].rpartition("/")[2] for entry in entries]


def options(group: str) -> list[str]:
    """Return the options of a group: the names of its yaml files, and ALGO-ENV for the sections of conf/tuned."""
    own = {path.stem for place in own_dirs for path in (place / group).glob("*.yaml")}
    ours = [path.stem for path in (conf_dir() / group).glob("*.yaml")]
    return sorted(own.union(*map(_tuned_options, ours)) if group == "tuned" else own.union(ours))


def _tuned_options(algo: str) -> list[str]:
    """Return ALGO-ENV for each environment with a section in conf/tuned/ALGO.yaml; ALGO if there is none."""
    envs = options("env")
    found = [env for section in sections(algo) for env in fnmatch.filter(envs, section) or [section]]
    return [f"{algo}-{env}" for env in found] or [algo]


def groups() -> list[str]:
    """Return the groups, which are the folders with yaml files in conf/ and in the user's folders."""
    own = {path.parent.name for place in own_dirs for path in place.glob("*/*.yaml")}
    return sorted(own | {path.name for path in conf_dir().iterdir() if path.is_dir()})


def defaults() -> dict[str, str]:
    """Return the default option of each group, from train.yaml."""
    entries = read_yaml(conf_dir() / "train.yaml")["defaults"]
    pairs = [next(iter(entry.items())) for entry in entries if isinstance(entry, dict)]
    return {group.removeprefix("optional "): str(option) for group, option in pairs}


def find_own_dirs(config_dir: str | None, overrides: Sequence[str], file: Path | None) -> list[Path]:
    """Return the user's folders: --config-dir, and hydra.searchpath on the command line or in the user's main config.

    Raise UsageError with every folder that does not exist.
    """
    named = [arg.partition("=")[2] for arg in overrides if arg.lstrip("+").startswith(f"{SEARCH_PATH}=")]
    try:
        content: Any = yaml.safe_load(file.read_text()) if file is not None and not named else None
        hydra = content.get("hydra") if isinstance(content, dict) else None
        given: Any = hydra.get("searchpath", []) if isinstance(hydra, dict) else []
        given = yaml.safe_load(named[-1]) if named else given
    except yaml.YAMLError as error:
        raise UsageError(unreadable(file if not named else SEARCH_PATH, error)) from error
    if not (isinstance(given, list) and all(isinstance(each, str) for each in given)):
        raise UsageError(f"{SEARCH_PATH}: must be a list of folders, as [file://my_conf] or [pkg://my_pkg.conf]")
    dirs = ([("--config-dir", config_dir)] if config_dir is not None else []) + [(SEARCH_PATH, each) for each in given]
    found = [(flag, place, _folder(place)) for flag, place in dirs]
    if missing := [f"{flag}: there is no folder {place}" for flag, place, folder in found if folder is None]:
        raise UsageError(missing)
    return [folder for _, _, folder in found if folder is not None]


def unreadable(file: Path | str | None, error: yaml.YAMLError) -> str:
    """Return the error line for a file that is not valid yaml, with the number of the invalid line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    line = "" if mark is None else f":{mark.line + 1}"
    return f"{file}{line}: no valid yaml: {problem or ' '.join(str(error).split())}"


def _folder(given: str) -> Path | None:
    """Return the path of the folder `DIR`, `file://DIR` or `pkg://PACKAGE`, or None if it does not exist."""
    if not given.startswith("pkg://"):
        folder = Path(given.removeprefix("file://")).absolute()
        return folder if folder.is_dir() else None
    try:
        spec = importlib.util.find_spec(given.removeprefix("pkg://").replace("/", "."))
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None
