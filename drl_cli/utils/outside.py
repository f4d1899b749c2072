"""Code from outside the package, named by its import path: imported or refused in one line, and its source file."""

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
    """There is nothing of that name to import; the message says what is missing."""


class ModuleRaised(Exception):
    """A module raised while it was imported; the message is its own error, and where it was raised."""


def import_module(path: str) -> ModuleType:
    """The module `my_pkg.my_module`, from the folders of `sys.path`.

    Raises NotFound where there is no such module, and ModuleRaised where there is one that can't be imported.
    """
    dotted = path.removesuffix(".py").replace("/", ".").strip(".")
    if dotted != path or not all(part.isidentifier() for part in path.split(".")):
        raise NotFound(f"'{path}' is no import path; say {dotted}" if dotted != path else f"'{path}' is no import path")
    try:
        return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            raise NotFound(f"there is no module '{error.name}' to import from {os.getcwd()}") from error
        text = " ".join(str(error).split())
        raise ModuleRaised(f"{path} raised {type(error).__name__}: {text}{_place(error)}") from error


def import_object(path: str) -> Any:  # Any: whatever the module has of that name
    """What `my_pkg.my_module:Name` names; raises NotFound and ModuleRaised."""
    module_path, _, name = path.partition(":")
    module = import_module(module_path)
    if not hasattr(module, name):
        raise NotFound(f"{module_path} has no '{name}'.{did_you_mean(name, vars(module))}")
    return getattr(module, name)


def raised_by(error: BaseException, modules: Iterable[str]) -> str | None:
    """The first of these modules whose source file is in an exception's traceback, in one from another process too."""
    text = "".join(traceback.format_exception(error))
    files = ((module, source_file(module)) for module in modules)
    return next((module for module, file in files if file is not None and f'File "{file}"' in text), None)


def source_file(module: str) -> Path | None:
    """The file that a module is imported from; None where the module can't be found, or has none."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # the package around it raised: who imports it will say so
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin is not None else None


def source_hash(file: Path) -> str:
    """sha256 of a source file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _place(error: BaseException) -> str:
    """' (file.py:3)', the innermost line of what was imported; nothing where it could not even be parsed."""
    machinery = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in machinery]
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if not frame.filename.startswith("<")]
    return f" ({lines[-1]})" if lines else ""
