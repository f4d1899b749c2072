"""What must hold of recorders and of an evaluator of the user's before anything starts."""

import inspect
from collections.abc import Sequence
from contextlib import suppress

from drl_cli.errors import MISSING, USAGE, USER_CODE, UsageError
from drl_cli.runtime.config import Config
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object, source_file

RECORDER = ("record", "close"), ["run"]
EVALUATOR = ("evaluate", "close"), ["config", "spec", "seeds"]
"""The methods that each has, and what it is made of."""


def check_recording(config: Config) -> None:
    """Raise when a recorder's package is missing, or what the user names is no recorder, or no evaluator."""
    for package, value in (("wandb", config.logger.wandb), ("mlflow", config.logger.mlflow)):
        if value != "none" and source_file(package) is None:
            line = f"logger.{package}={value} needs a package that is not installed:  pip install 'drl-cli[{package}]'"
            raise UsageError(line, MISSING)
    if (uri := config.logger.mlflow) not in ("none", "offline", "databricks") and "://" not in uri:
        raise UsageError(f"logger.mlflow: must be none, offline or a tracking server's URI (http://...), got {uri}")
    own = [("logger.recorders", path, RECORDER) for path in config.logger.recorders]
    own += [("manage.evaluator", path, EVALUATOR) for path in [config.manage.evaluator] if path is not None]
    problems: list[str] = []
    raised: list[str] = []
    for key, path, (methods, arguments) in own:
        try:
            problems += [f"{key}: {problem}" for problem in _problems(path, methods, arguments)]
        except ModuleRaised as error:
            raised.append(f"{key}: {error}")
    if problems or raised:
        raise UsageError([*problems, *raised], USAGE if problems else USER_CODE)


def _problems(path: str, methods: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Why what is at this path can't be made of these arguments, or lacks these methods."""
    try:
        make = import_object(path)
    except NotFound as error:
        return [str(error)]
    if not callable(make):
        return [f"{path} is no class, and nothing else that can be called"]
    try:
        with suppress(ValueError):  # what is not written in Python may not say what it takes
            inspect.signature(make).bind(*arguments)
    except TypeError as error:
        return [f"{path} is to be made of ({', '.join(arguments)}): {error}"]
    lacking = [method for method in methods if isinstance(make, type) and not callable(getattr(make, method, None))]
    return [f"{path} has no method {' and no '.join(lacking)} (docs/recording.md)"] if lacking else []
