"""The run that `resume=` or `from_config=` names, whose config.yaml is then the main config of the command line."""

import dataclasses
from functools import partial
from pathlib import Path

from drl_cli.errors import UsageError
from drl_cli.run_folder.find import check_format, find_run, find_saved_run, read_config
from drl_cli.run_folder.resume import find_checkpoint
from drl_cli.settings.command_line import OVERRIDE, CommandLine, path_word
from drl_cli.settings.conf import defaults
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.trust import trusts
from drl_cli.utils.hydra_grammar import unquoted


def named_run(command: CommandLine) -> Path | None:
    """Return the run folder that `resume=` or `from_config=` names, or None without these keys. Raise UsageError."""
    values = {match["key"]: match["value"] for arg in command.overrides if (match := OVERRIDE.fullmatch(arg))}
    if empty := [key for key in ("resume", "from_config", "load_weights") if values.get(key) == ""]:
        raise UsageError(
            [f"{key}: say which run: {key}=latest, a path, the start of a run id, or a run's name" for key in empty]
        )
    keys = ("from_config",) if command.is_sweep else ("resume", "from_config")  # in a sweep, resume= names a sweep
    named = {key: value for key in keys if (value := values.get(key)) not in (None, "", "null")}
    if not named:
        return None
    if len(named) > 1:
        raise UsageError("resume goes on with a run, from_config starts another: say one of them")
    ((key, value),) = named.items()
    if command.config_file is not None:
        raise UsageError(f"{key} brings the run's config: leave --config-path and --config-name out")
    run, output_dir = unquoted(value), unquoted(values.get("output_dir") or "outputs")
    # is_quiet, because `resume` finds the run again, and then prints the warning about newer runs
    find = partial(find_saved_run, is_quiet=True) if key == "resume" else find_run
    folder, checkpoint = find_checkpoint(run, output_dir, find)
    free = {"mode"} if key == "resume" else {"mode", "hpo"}
    if chosen := sorted(values.keys() & defaults().keys() - free):
        raise UsageError([group_line(key, group, values[group]) for group in chosen])
    if key == "resume":
        check_format(checkpoint or folder / "checkpoints" / "last")
    # This rejects unknown keys before Hydra reads the file.
    read_config(folder, trusts(command.overrides), command.overrides)
    return folder


def group_line(key: str, group: str, option: str) -> str:
    """Return the error line for `GROUP=OPTION` beside `resume=` or `from_config=`."""
    choice = f"{key}: {group}={option} can't be chosen here"
    if group in ("env", "algo"):
        why = "the saved weights and replay belong" if key == "resume" else "the run's values belong"
        other = f"begin a new run: drl-train {group}={option} ..."
        return f"{choice}: {why} to the run's own {group}; leave it out, or {other}"
    return f"{choice}: it would replace all {group}.* of the run; leave it out, or set single keys, {group}.KEY=VALUE"


def with_config_of_run(command: CommandLine) -> CommandLine:
    """Return the command line with the config.yaml of the run that it names as the main config, if it names a run.

    A new run does not inherit the name of the run. A sweep passes `from_config=` to its jobs, with the path of the run,
    because `latest` would name another run when a job starts.
    """
    if (folder := named_run(command)) is None:
        return command
    file, words, typed = folder / "config.yaml", command.overrides, typed_values(command.overrides)
    if command.is_sweep:
        pinned = path_word("from_config", folder)
        words = [pinned if word.lstrip("+").startswith("from_config=") else word for word in words]
        return dataclasses.replace(command, overrides=words, config_file=file)
    if "from_config" in typed and "name" not in typed:
        words = [*words, "name=null"]
    flags = [*command.flags, "--config-path", str(folder), "--config-name", "config"]
    return dataclasses.replace(command, flags=flags, overrides=words, config_file=file)
