"""The environment of a command line that names a dataset, but no environment."""

import dataclasses

from drl_cli.envs.config import NO_ENV
from drl_cli.settings.command_line import CommandLine
from drl_cli.settings.env_names import typed_spec, typed_values
from drl_cli.utils.hydra_grammar import is_sweep, unquoted


def with_data_env(command: CommandLine) -> tuple[CommandLine, str | None]:
    """Add the environment that a dataset names to a command line without one, and return a line if there is none.

    If the environment is unknown or is not installed, the run has no environment and therefore no evaluations. Raise
    DatasetError if the dataset can't be opened.
    """
    typed = typed_values(command.overrides)
    source = unquoted(typed.get("data.source", ""))
    is_plain = source and source != "null" and not is_sweep(source)
    if not is_plain or {"env", "env.id"} & typed.keys() or command.config_file:
        return command, None
    from drl_cli.data.open import open_recording  # slow: imports gymnasium

    found = open_recording(source).env
    if found is not None and typed_spec((*command.overrides, f"env={found}")) is not None:
        return dataclasses.replace(command, overrides=[*command.overrides, f"env={found}"]), None
    if typed.get("mode") != "offline":
        return command, None
    why = "the dataset does not name its environment" if found is None else f"{found} is not installed here"
    words = [f"env={NO_ENV}", *([] if found is None else [f"env.name={found}"])]
    line = f"no evaluations: {why}; env=ID names one"
    return dataclasses.replace(command, overrides=[*command.overrides, *words]), line
