"""Finding runs: by path, `latest`, a glob or the start of a run id."""

import glob
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.runs.run import SWEEP_FILE
from drl_cli.runs.run import read_json as read_json
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import other_format
from drl_cli.settings.settings import build

SHOWN = 5
"""Of many runs, how many a message names."""


def all_runs(output_dir: str) -> list[Path]:
    """Run folders below output_dir, oldest first."""
    return sorted((path.parent for path in Path(output_dir).glob("*/*/*/run.json")), key=lambda path: path.name)


def find_run(run: str, output_dir: str) -> Path:
    """The run that RUN means, the newest of a glob's; raises UsageError when there is none.

    The start of an id that several runs have is refused, with them.
    """
    path = Path(run)
    if (path / "run.json").is_file():
        return path.resolve()
    runs = all_runs(output_dir)
    if run == "latest":
        found: Sequence[Path] = runs
    else:
        named = [Path(match) for match in glob.glob(run) if (Path(match) / "run.json").is_file()]
        found = [path for path in runs if path.name.startswith(run)]
        if len(found) > 1:
            shown = ", ".join(path.name for path in reversed(found[-SHOWN:]))
            raise UsageError(f"'{run}' begins the ids of {len(found)} runs: {shown}{', ...' * (len(found) > SHOWN)}")
        found = sorted([*found, *named], key=lambda path: path.name)
    if not found:
        raise UsageError(_no_run(path, runs, output_dir))
    return found[-1].resolve()


def find_step(folder: Path, name: str) -> Path:
    """The step folder that `best`, `last`, a number of env steps or a folder's name means.

    Raises UsageError (exit 8) with those that exist.
    """
    root = folder / "checkpoints"
    steps = sorted(path for path in root.glob("step_*") if path.is_dir())
    links = [link for link in ("best", "last") if (root / link).is_dir()]
    if name in links:
        return (root / name).resolve()
    for path in steps:
        if path.name == name or _env_steps(path) == _whole(name):
            return path
    there = f"there are {', '.join([*links, *(path.name for path in steps)])}" if steps else "there is none yet"
    raise UsageError(f"checkpoint={name}: no such checkpoint in {root}; {there}", CHECKPOINT)


def _env_steps(checkpoint: Path) -> int | None:
    found = re.match(r"step_(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def _whole(text: str) -> int | float:
    """The whole number that is meant (200000, 200_000, 2e5), or NaN."""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return math.nan


def _no_run(path: Path, runs: Sequence[Path], output_dir: str) -> str:
    """What a path is instead of a run, or what there is instead of it."""
    if path.is_file():
        return f"{path} is a file; a run is the folder in which run.json is"
    if path.is_dir() and path.resolve() != Path(output_dir).resolve():
        below = sorted((found.parent for found in path.glob("**/run.json")), key=lambda found: found.name)
        there = f"; the newest of {len(below)} runs below it is {below[-1]}" if below else ""
        return f"{path} is no run: it has no run.json{there}"
    newest = f", the newest is {runs[-1].name}" if runs else ""
    return f"no run '{path}' in {Path(output_dir).absolute()} ({len(runs)} runs there{newest})"


def read_config(folder: Path) -> Config:
    """The config that a run was started with."""
    path = folder / "config.yaml"
    try:
        node: Any = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: not readable ({error})", CHECKPOINT) from error
    if not isinstance(node, dict):
        raise UsageError(f"{path}: damaged, it holds no options", CHECKPOINT)
    return build(node)


def check_format(checkpoint: Path) -> None:
    """Raise UsageError (exit 8) for a checkpoint of another format, before its run's config is read, which may be too.

    What else is wrong with it is said by who reads it.
    """
    manifest = read_json(checkpoint / "manifest.json")
    if manifest and (problem := other_format(manifest)):
        raise UsageError(f"{checkpoint}: {problem}", CHECKPOINT)


def find_runs(patterns: Sequence[str], output_dir: str) -> list[Path]:
    """Every run that one of the patterns means, oldest first; raises UsageError for a pattern that means none.

    A pattern is what `find_run` takes, or a folder of runs; globs and folders are looked for here and in output_dir.
    """
    if not patterns:
        raise UsageError("runs: names no run")
    runs, found, problems = all_runs(output_dir), set[Path](), list[str]()
    for pattern in patterns:
        places = [Path(root, match) for root in (".", output_dir) for match in glob.glob(pattern, root_dir=root)]
        matches = {run for place in places for run in _runs_in(place)}
        matches |= set(runs[-1:] if pattern == "latest" else (run for run in runs if run.name.startswith(pattern)))
        if not matches:
            problems.append(f"no run '{pattern}' in {Path(output_dir).absolute()} ({len(runs)} runs there)")
        found |= {run.resolve() for run in matches}
    if problems:
        raise UsageError(problems)
    return sorted(found, key=lambda path: (path.name, path))


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself where it is a run, those of a sweep's folder, or those below it, as deep as run folders are."""
    if (folder / SWEEP_FILE).is_file():
        return _runs_of_sweep(folder)
    depths = ("run.json", "*/run.json", "*/*/run.json", "*/*/*/run.json")
    return next((found for depth in depths if (found := [path.parent for path in folder.glob(depth)])), [])


def _runs_of_sweep(folder: Path) -> list[Path]:
    """Return the run folders of the sweep's jobs that have started, in the order of the jobs."""
    jobs = read_json(folder / SWEEP_FILE).get("jobs", [])
    named = [read_json(folder / f"{number}.json").get("run") or job["run"] for number, job in enumerate(jobs, 1)]
    return [Path(run) for run in named if run and (Path(run) / "run.json").is_file()]
