"""Remove runs, and change their names, tags and notes afterwards."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.errors import UsageError
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.checkpoint import write_json
from drl_cli.run_folder.find import find_runs
from drl_cli.run_folder.saved_run import SECTION, Run, read_json
from drl_cli.settings.build import judge, keys_of
from drl_cli.utils.files import lock, replace_file
from drl_cli.utils.shown import print

EMPTY = "empty"
"""The word for all runs that failed or have no checkpoint."""
MOST_SHOWN = 20
"""The number of runs that the question names before it removes them."""


def chosen(runs: Sequence[Run], words: Sequence[str], output_dir: str) -> list[Run]:
    """Return those of `runs` that the words name: patterns as for `find_runs`, or EMPTY. Raise UsageError."""
    patterns, found = [word for word in words if word != EMPTY], list[Run]()
    named = {path.resolve() for path in find_runs(patterns, output_dir)} if patterns else set[Path]()
    for run in runs:
        is_empty = run.status == "failed" or not any((run.folder / "checkpoints").glob("step_*/manifest.json"))
        found += [run] if run.folder.resolve() in named or (EMPTY in words and is_empty) else []
    return found


def remove(runs: Sequence[Run], is_agreed: bool) -> list[str]:
    """Remove the folders of runs, after a question unless `is_agreed`. Return a line per run, and their number.

    A run that trains stays. Raise UsageError if nobody can answer the question.
    """
    if not runs:
        return ["no run to remove"]
    if not is_agreed and not _agrees(runs):
        return ["nothing was removed"]
    lines, num = list[str](), 0
    for run in runs:
        with _claimed(run.folder) as is_free:
            if is_free:
                shutil.rmtree(run.folder)
                num += 1
        lines.append(f"{'removed' if is_free else 'kept, because it trains:'} {run.folder}")
        with suppress(OSError):  # the folders of the algorithm and of the environment, if they are empty now
            run.folder.parent.rmdir()
            run.folder.parent.parent.rmdir()
    return [*lines, f"{num} of {len(runs)} runs removed"]


def _agrees(runs: Sequence[Run]) -> bool:
    """Show the runs, and return whether the user wants to remove them.

    Raise UsageError if there is no terminal to ask on.
    """
    for run in runs[:MOST_SHOWN]:
        print(f"  {run.folder}  {run.status}, {run.position:,} {run.unit.replace('_', ' ')}, best {run.best}")
    if len(runs) > MOST_SHOWN:
        print(f"  and {len(runs) - MOST_SHOWN} more")
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    if not sys.stdin.isatty():
        raise UsageError(f"remove: {count} would be removed; say yes=true to remove them without a question")
    return input(f"remove {count} with their checkpoints? [y/N] ").strip().lower() in ("y", "yes")


def describe(runs: Sequence[Run], values: Mapping[str, Any]) -> list[str]:  # Any: values of the keys
    """Set `name`, `tags` and `notes` of runs, in run.json and config.yaml. Return a line per run.

    Raise UsageError for a wrong value, and for a run that trains, because it would write its own values at its end.
    """
    keys = keys_of(AlgoConfig)
    typed = {key: judge(keys[key], value) for key, value in values.items()}
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in typed.items()}
    for run in runs:
        with _claimed(run.folder) as is_free:
            if not is_free:
                raise UsageError(f"{run.id} trains; change its name, tags and notes when it has ended")
            write_json(run.folder / "run.json", read_json(run.folder / "run.json") | plain)
            file = run.folder / "config.yaml"
            others = (part for part in SECTION.split(file.read_text()) if part.partition(":")[0] not in plain)
            replace_file(file, "".join([*others, yaml.safe_dump(plain, allow_unicode=True)]).encode())
    text = ", ".join(f"{key}={value}" for key, value in plain.items())
    return [f"{run.id}: {text}" for run in runs]


@contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Lock a run's folder in this context, and return True; return False if the run trains."""
    try:
        claim = lock(folder / RUN_LOCK)
    except BlockingIOError:
        yield False
        return
    with claim:
        yield True
