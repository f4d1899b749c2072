"""Checks of recorders (wandb, mlflow, a user's class) and of a user's evaluator."""

import inspect
from collections.abc import Sequence
from contextlib import suppress

from drl_cli.errors import MISSING, USAGE, USER_CODE, UsageError
from drl_cli.runtime.config import Config
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object, source_file

RECORDER = ("record", "close"), ["run"]
EVALUATOR = ("evaluate", "close"), ["config", "spec", "seeds"]
"""The methods that a user's evaluator class must have, and the arguments of its constructor."""


def check_recording(config: Config) -> None:
    """Raise UsageError if a recorder's package is missing, or if a user's recorder or evaluator is unsuitable."""
    for package, value in (("wandb", config.logger.wandb), ("mlflow", config.logger.mlflow)):
        if value != "none" and source_file(package) is None:
            line = f"logger.{package}={value} needs a package that is not installed:  pip install 'drl-cli[{package}]'"
            raise UsageError(line, MISSING)
    if (uri := config.logger.mlflow) not in ("none", "offline", "databricks") and "://" not in uri:
        raise UsageError(f"logger.mlflow: must be none, offline or a tracking server's URI (http://...), got {uri}")
    classes = [("logger.recorders", path, RECORDER) for path in config.logger.recorders]
    if config.manage.evaluator is not None:
        classes.append(("manage.evaluator", config.manage.evaluator, EVALUATOR))
    problems, raised = list[str](), list[str]()
    for key, path, (methods, arguments) in classes:
        try:
            problems += [f"{key}: {problem}" for problem in _class_problems(path, methods, arguments)]
        except ModuleRaised as error:
            raised.append(f"{key}: {error}")
    if problems or raised:
        raise UsageError([*problems, *raised], USAGE if problems else USER_CODE)


def _class_problems(path: str, methods: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return error lines if the class at an import path lacks a method, or can't be called with these arguments."""
    try:
        make = import_object(path)
    except NotFound as error:
        return [str(error)]
    if not callable(make):
        return [f"{path} is not a class and can't be called"]
    try:
        with suppress(ValueError):  # raised for a class without a signature, which may be written in C
            inspect.signature(make).bind(*arguments)
    except TypeError as error:
        return [f"{path} must accept ({', '.join(arguments)}): {error}"]
    lacking = [method for method in methods if isinstance(make, type) and not callable(getattr(make, method, None))]
    return [f"{path} has no method {' and no '.join(lacking)} (docs/recording.md)"] if lacking else []
