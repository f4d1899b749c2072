"""Import the user's code by its import path, with one-line error messages, and find its source file."""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from drl_cli.utils.spelling import did_you_mean

PACKAGES = {"site-packages", "dist-packages"}
LIBRARIES = ("gymnasium", "numpy", "ray", "torch")


folders: list[str] = []
"""The folders in which `reach` looks for modules that are not installed. Only commands and `look_in` change the list.

The current folder is in it if the user typed the command's modules, so that a file there can't pose as a library.
"""


class NotFound(ValueError):
    """Raised if a module or object does not exist; the message names the module or object."""


class ModuleRaised(Exception):
    """Raised if a module raises an error during its import; the message has the error and the line of code."""


def import_module(path: str) -> ModuleType:
    """Import `my_pkg.my_module`. Raise NotFound if the module is missing, or ModuleRaised if the import fails."""
    dotted = path.removesuffix(".py").replace("/", ".").strip(".")
    if dotted != path or not all(part.isidentifier() for part in path.split(".")):
        raise NotFound(f"'{path}' is no import path{f'; say {dotted}' if dotted != path else ''}")
    try:
        return bare_import(path)
    except NotFound:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            raise NotFound(f"there is no module '{error.name}' to import from {os.getcwd()}") from error
        raise ModuleRaised(f"{path} {raised(error)}") from error


def bare_import(path: str) -> ModuleType:
    """Import a module of the user without changing its errors. Raise NotFound for a module of Python itself."""
    if path.partition(".")[0] in sys.stdlib_module_names:
        raise NotFound(f"{path} is a module of Python, which has nothing for a run")
    reach(path)
    return importlib.import_module(path)


def look_in(folder: str) -> None:
    """Let `reach` look for modules in this folder, too."""
    if folder not in folders:
        folders.append(folder)


def reach(path: str) -> None:
    """Make a module of the user importable: append its folder to the end of `sys.path` unless it is installed.

    Without this call, nothing is imported from `folders`. The end of `sys.path` keeps libraries from being replaced.
    """
    top = path.partition(".")[0]
    if top in sys.modules or not top.isidentifier() or PathFinder.find_spec(top, sys.path) is not None:
        return
    if (found := next((each for each in folders if PathFinder.find_spec(top, [each]) is not None), None)) is not None:
        sys.path.append(found)


def folder_of(module: str) -> Path | None:
    """Return the folder from which the top-level package of a module would be imported, or None."""
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, [*sys.path, *folders]) if top.isidentifier() else None
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    file = Path(spec.origin).absolute()
    return file.parents[1] if spec.submodule_search_locations else file.parent


def import_object(path: str) -> Any:
    """Return the object `my_pkg.my_module:Name`; raise NotFound or ModuleRaised."""
    module_path, _, name = path.partition(":")
    module = import_module(module_path)
    if not hasattr(module, name):
        raise NotFound(f"{module_path} has no '{name}'.{did_you_mean(name, vars(module))}")
    return getattr(module, name)


def raised_by(error: BaseException, modules: Iterable[str]) -> str | None:
    """Return the first module whose code was running when the error, or its cause, was raised; None for other code.

    Call this in the process that raised the error: an error from another process has no stack.
    """
    running = {file for file, _ in _stack(error)}
    files = ((module, source_file(module)) for module in modules)
    return next((module for module, file in files if file in running), None)


def _stack(error: BaseException) -> list[tuple[Path, int]]:
    """Return file and line of each frame from which the error and its causes were raised, the innermost frame last."""
    frames: list[tuple[Path, int]] = []
    chain: BaseException | None = error
    while chain is not None:
        frames = [(Path(frame.f_code.co_filename), line) for frame, line in walk_tb(chain.__traceback__)] + frames
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return frames


def source_file(module: str) -> Path | None:
    """Return the source file of a module, or None if the module does not exist or has no file."""
    reach(module)
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # the parent package raised an error; importing the module reports the error
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin is not None else None


def source_hash(file: Path) -> str:
    """Return the SHA-256 hash of a source file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def raised(error: BaseException) -> str:
    """Describe an error of the user's code in one line: `raised NameError: name 'x' is not defined (my_env.py:3)`."""
    # the message of a syntax error has the line
    where = "" if isinstance(error, SyntaxError) else _place(_stack(error))
    return f"raised {type(error).__name__}: {' '.join(str(error).split())}{where}"


def missing_arguments(error: BaseException) -> list[str]:
    """Return the names of the arguments that a call lacked, if this is Python's error about them."""
    lacks = re.search(r"missing \d+ required [\w-]+ arguments?: (.*)", str(error))
    return re.findall(r"'(\w+)'", lacks[1]) if isinstance(error, TypeError) and lacks else []


def place(dump: str) -> str:
    """Return the place of a text of `faulthandler` as `_place` does; its last line is the innermost line."""
    return _place([(Path(file), int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', dump)])


def _place(frames: list[tuple[Path, int]]) -> str:
    """Return the innermost line of the user's code, as ' (file.py:3)'.

    If there is none, return a line of another package. Return '' if all lines belong to drl-cli or to a library that
    it uses.
    """
    outside = [frame for frame in frames if not (frame[0].name.startswith("<") or _is_machinery(frame[0]))]
    if not outside:
        return ""
    own = [frame for frame in outside if not PACKAGES & set(frame[0].parts)]
    file, line = (own or outside)[-1]
    return f" ({os.path.relpath(file) if file.is_relative_to(Path.cwd()) else file.name}:{line})"


def innermost_last(dump: str) -> str:
    """Return the last stack in a text of `faulthandler` for `place`: from drl-cli's call to the innermost line."""
    lines = dump.rpartition("most recent call first")[2].splitlines()
    return "\n".join(
        reversed([*takewhile(lambda line: f'File "{Path(__file__).parents[1]}{os.sep}' not in line, lines)])
    )


def _is_machinery(file: Path) -> bool:
    """Return whether a file belongs to drl-cli, to Python, or to a library that calls the user's code."""
    if file.is_relative_to(Path(__file__).parents[1]):
        return True
    folders = PACKAGES & set(file.parts)
    library = file.parts[file.parts.index(folders.pop()) + 1] if folders else None
    return library in LIBRARIES if library else file.is_relative_to(sysconfig.get_path("stdlib"))
