"""Import the user's code by its import path, with one-line error messages, and find its source file."""

import hashlib
import importlib
import importlib.util
import os
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from drl_cli.utils.spelling import did_you_mean


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
        return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            raise NotFound(f"there is no module '{error.name}' to import from {os.getcwd()}") from error
        text = " ".join(str(error).split())
        raise ModuleRaised(f"{path} raised {type(error).__name__}: {text}{_place(error)}") from error


def import_object(path: str) -> Any:  # Any: a class or function of the user
    """Return the object `my_pkg.my_module:Name`; raise NotFound or ModuleRaised."""
    module_path, _, name = path.partition(":")
    module = import_module(module_path)
    if not hasattr(module, name):
        raise NotFound(f"{module_path} has no '{name}'.{did_you_mean(name, vars(module))}")
    return getattr(module, name)


def raised_by(error: BaseException, modules: Iterable[str]) -> str | None:
    """Return the first module whose source file is in the error's traceback, or None.

    The traceback may come from another process.
    """
    text = "".join(traceback.format_exception(error))
    files = ((module, source_file(module)) for module in modules)
    return next((module for module, file in files if file is not None and f'File "{file}"' in text), None)


def source_file(module: str) -> Path | None:
    """Return the source file of a module, or None if the module does not exist or has no file."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # the parent package raised an error; importing the module reports the error
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin is not None else None


def source_hash(file: Path) -> str:
    """Return the SHA-256 hash of a source file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _place(error: BaseException) -> str:
    """Return the innermost line of the user's code as ' (file.py:3)', or '' for a syntax error."""
    machinery = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in machinery]
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if not frame.filename.startswith("<")]
    return f" ({lines[-1]})" if lines else ""
