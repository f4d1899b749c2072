"""The dataset of a command line: the path of `run:RUN`, and the environment if the command names none."""

import dataclasses
import re
import sys
from pathlib import Path

from drl_cli.data.find import MINARI, RUN, consent_file, dataset_of_run, datasets_in, local_drafts, local_ids
from drl_cli.envs.config import NO_ENV
from drl_cli.run_folder.find import find_run
from drl_cli.settings.command_line import CommandLine
from drl_cli.settings.env_names import typed_spec, typed_values
from drl_cli.settings.trust import consent, trusts
from drl_cli.utils.hydra_grammar import is_sweep, listed, unquoted
from drl_cli.utils.shown import print, relative_path

ENV_NAME = re.compile(r"[\w./:-]+")
"""The signs in the name of an environment. A dataset with another text names none."""


def with_data_env(command: CommandLine) -> tuple[CommandLine, str | None]:
    """Replace `run:RUN` in `data=` by the path of this run's dataset, and add the environment that a dataset names.

    A command line with an environment keeps it. Return a line if there is none, or if the environment was made with
    arguments for the recording: a dataset is data, and never gives arguments to code.

    If the environment is unknown or is not installed, the run has no environment and therefore no evaluations. Raise
    UsageError if there is no such run, and DatasetError if the dataset can't be opened.
    """
    typed = typed_values(command.overrides)
    value = typed.get("data.source", "")
    sources = listed(value) if value != "null" and not is_sweep(value) else []
    if any(source.startswith("run:") for source in sources):
        folder = unquoted(typed.get("output_dir", "outputs"))
        paths = ",".join(dataset_path(source, folder) for source in sources)
        changed = f"data.source=[{paths}]" if len(sources) > 1 else f"data.source={paths}"
        overrides = [arg if arg.partition("=")[0] != "data.source" else changed for arg in command.overrides]
        return with_data_env(dataclasses.replace(command, overrides=overrides))
    if not sources or {"env", "env.id"} & typed.keys() or command.config_file:
        return command, None
    from drl_cli.data.open import open_recording  # slow: imports gymnasium

    opened = [open_recording(source, download=typed.get("data.download") == "true") for source in sources]
    recorded = [(source, each.env) for source, each in zip(sources, opened, strict=True)]
    envs = {env if isinstance(env, str) and ENV_NAME.fullmatch(env) else None for _, env in recorded}
    found = envs.pop() if len(envs) == 1 else None
    if found is not None:
        for source, env in recorded:
            consent(consent_file(source), {"env": {"id": env}}, trust=trusts(command.overrides))
    if found is not None and typed_spec((*command.overrides, f"env={found}")) is not None:
        given = [each.provenance.get("env_kwargs") for each in opened]
        names = {f"env.kwargs.{name}" for kwargs in given if isinstance(kwargs, dict) for name in kwargs}
        untyped = sorted(names - typed.keys())
        it = "it" if len(untyped) == 1 else "them"
        line = f"evaluations are without the recording's {', '.join(untyped)}: type {it}"
        return dataclasses.replace(command, overrides=[*command.overrides, f"env={found}"]), line if untyped else None
    if typed.get("mode") != "offline":
        return command, None
    why = "the dataset does not name its environment" if found is None else f"{found} is not installed here"
    words = [f"env={NO_ENV}", *([] if found is None else [f"env.name={found}"])]
    line = f"no evaluations: {why}; env=ID names one"
    return dataclasses.replace(command, overrides=[*command.overrides, *words]), line


def dataset_path(source: str, output_dir: str) -> str:
    """Return `source`, or the path of a run's newest dataset in place of `run:RUN`. Print a note if it has others.

    `latest` is the newest run that has a dataset. Raise UsageError if there is no such run, or if it has no dataset.
    """
    if not source.startswith(RUN):
        return source
    folder = find_run(source.removeprefix(RUN), output_dir, lambda run: bool(datasets_in(run / "data")))
    path, num = dataset_of_run(f"{RUN}{relative_path(folder)}"), len(datasets_in(folder / "data"))
    if num > 1:
        print(f"note: {source} is {path}, the newest of {num} datasets of this run", file=sys.stderr)
    return str(path)


def all_datasets(output_dir: str) -> list[str]:
    """Return the datasets of runs, those of environments below `output_dir`/data, and those in Minari's folder."""
    root = Path(output_dir)
    folders = [*sorted(root.glob("*/*/*/data")), *sorted(root.glob("data/*"))]
    found = [relative_path(path.absolute()) for folder in folders for path in datasets_in(folder)]
    return [*found, *(f"{MINARI}{id}" for id in local_ids()), *map(str, local_drafts())]
