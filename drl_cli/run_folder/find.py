"""Find run folders and checkpoints by path, `latest`, a glob, the start of a run id, or the name of runs."""

import glob
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.run_folder import SWEEP_FILE
from drl_cli.run_folder.checkpoint import other_format
from drl_cli.run_folder.pruning import best_model, candidates
from drl_cli.run_folder.saved_run import Run, read_json
from drl_cli.settings.build import build, with_new_keys
from drl_cli.settings.trust import consent, read_run
from drl_cli.utils.shown import print, score_text
from drl_cli.utils.spelling import did_you_mean
from drl_cli.version import versions

NAME = "name="
"""The start of a text that can only be the name of runs, such as `name=wide`."""
MAX_NAMED = 5
"""Maximum number of runs that an error message names."""


def all_runs(output_dir: str) -> list[Path]:
    """Return the run folders below `output_dir`, oldest first. Each run has a later name than all runs before it."""
    return sorted((path.parent for path in Path(output_dir).glob("*/*/*/run.json")), key=lambda path: path.name)


def find_run(
    run: str, output_dir: str, fits: Callable[[Path], bool] = lambda run: True, is_quiet: bool = False
) -> Path:
    """Return the newest run that `run` names and that `fits`, or the newest one if none fits. Raise UsageError.

    `run` is a path, `latest`, a glob of one run, the start of an id, or the name of runs. Unless `is_quiet`, print a
    note that names the other runs of a name.
    """
    found = _matches(run, output_dir)
    taken = next((each for each in reversed(found) if fits(each)), found[-1])
    others = [each.name for each in reversed(found) if each != taken]
    if others and not is_quiet and run != "latest" and _name(taken) == run.removeprefix(NAME):
        have, it = ("1 other run has", "it") if len(others) == 1 else (f"{len(others)} other runs have", "one")
        line = f"{have} this name; to take {it}, type its id: {_listed(others)}"
        print(f"note: {run} is {taken.name}; {line}", file=sys.stderr)
    return taken


def find_saved_run(run: str, output_dir: str, is_quiet: bool = False) -> Path:
    """Return the newest matching run that has a checkpoint, or the newest match if none has. Raise UsageError.

    Unless `is_quiet`, also print a warning that names newer runs without a checkpoint.
    """
    saved = find_run(run, output_dir, has_checkpoint, is_quiet)
    newer = [f"{each.name} ({Run(each).status})" for each in _matches(run, output_dir)[::-1] if each.name > saved.name]
    if newer and not is_quiet:
        print(f"warning: '{run}' is {saved.name}; newer runs without a checkpoint: {_listed(newer)}", file=sys.stderr)
    return saved


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def has_checkpoint(run: Path) -> bool:
    """Return whether a run has saved a checkpoint."""
    return any(run.glob("checkpoints/*/manifest.json"))


def _matches(run: str, output_dir: str) -> list[Path]:
    """Return the runs that match `run`, oldest first. Raise UsageError if there is none."""
    path = Path(run)
    if not run:
        raise UsageError("run: say which run: latest, a path, the start of a run id, or a run's name")
    if (path / "run.json").is_file():
        return [path.resolve()]
    runs = all_runs(output_dir)
    if run == "latest":
        found = runs
    else:
        begun = [path.resolve() for path in runs if path.name.startswith(run)]
        matches = [Path(match).resolve() for match in glob.glob(run) if (Path(match) / "run.json").is_file()]
        found = sorted({*begun, *matches}, key=lambda path: path.name)
        if len(found) > 1:
            names = ", ".join(map(_with_return, reversed(found[-MAX_NAMED:])))
            more = ", ..." if len(found) > MAX_NAMED else ""
            raise UsageError(f"'{run}' stands for {len(found)} runs: {names}{more}; say which one")
        found = found or _named(run, runs)
    if not found:
        raise UsageError(_no_run(path, runs, output_dir))
    return [each.resolve() for each in found]


def _with_return(run: Path) -> str:
    best = Run(run).best
    return run.name if best is None else f"{run.name} (best return {score_text(best)})"


def _named(name: str, runs: Sequence[Path]) -> list[Path]:
    return [run for run in runs if _name(run) == name.removeprefix(NAME)]


def _name(run: Path) -> str | None:
    name = read_json(run / "run.json").get("name")
    return name if isinstance(name, str) else None


def find_saved_step(run: str, checkpoint: str, output_dir: str) -> tuple[Path, Path]:
    """Return a run that has a checkpoint, and the checkpoint. `run` may also be the folder of a checkpoint.

    Raise UsageError, with exit code 8 if the run has no such checkpoint.
    """
    path = Path(run)
    if path.parent.name == "checkpoints" and (path.parents[1] / "run.json").is_file():
        folder, checkpoint = path.parents[1].resolve(), path.name
    else:
        folder = find_saved_run(run, output_dir)
    warn_of_versions(folder)
    return folder, find_step(folder, checkpoint)


def warn_of_versions(folder: Path) -> None:
    """Print a line if the run was made with another version of drl-cli, torch or gymnasium than those here."""
    made = read_json(folder / "run.json").get("versions", {})
    here = versions("torch", "gymnasium")
    others = [f"{name} {made[name]} (here {here[name]})" for name in here if made.get(name, here[name]) != here[name]]
    if others:
        print(f"warning: {folder.name} was made with {', '.join(others)}", file=sys.stderr)


def find_step(folder: Path, name: str) -> Path:
    """Return the checkpoint `name`: best, last, a folder's name or a number of env steps (2e5). Raise UsageError."""
    root = folder / "checkpoints"
    if not name:
        raise UsageError(f"checkpoint: say which checkpoint; {checkpoint_names(root)}")
    if name in ("best", "last"):
        if (root / name).is_dir():
            if (found := (root / name).resolve()).parent != root.resolve():
                raise UsageError(f"{root / name} leads out of the run, to {found}", CHECKPOINT)
            return found
        best = best_model(root) if name == "best" else None
        if (newest := best or next(iter(candidates(root)), None)) is not None:
            is_new = name == "best" and best is None
            why = "this run has no best model yet" if is_new else f"{root / name} is not a link to a checkpoint"
            print(f"note: {why}; taking {newest.name}", file=sys.stderr)
            return newest.resolve()
    try:
        env_steps = int(float(name))
    except (ValueError, OverflowError):
        env_steps = -1
    for path in sorted(path for path in root.glob("step_*") if path.is_dir()):
        steps = re.match(r"step_(\d+)", path.name)
        if path.name == name or (steps and int(steps[1]) == env_steps):
            return path
    hint = did_you_mean(name, {"best", "last"} - {name})
    raise UsageError(
        f"checkpoint={name}: no such checkpoint in {root}; {checkpoint_names(root)}{hint and f'.{hint}'}", CHECKPOINT
    )


def checkpoint_names(checkpoints: Path) -> str:
    """Return the names of the checkpoints in this folder, as the end of an error message."""
    names = sorted(path.parent.name for path in checkpoints.glob("*/manifest.json"))
    return f"there is: {', '.join(names)}" if names else "there is none"


def _no_run(path: Path, runs: Sequence[Path], output_dir: str) -> str:
    """Return the error message for a path that is not a run: what the path is, or which runs exist."""
    if path.is_file():
        return f"{path} is a file; a run is the folder in which run.json is"
    if path.is_dir() and path.resolve() != Path(output_dir).resolve():
        below = sorted((found.parent for found in path.glob("**/run.json")), key=lambda found: found.name)
        there = f"; the newest of {len(below)} runs below it is {below[-1]}" if below else ""
        return f"{path} is no run: it has no run.json{there}"
    newest = f", the newest is {runs[-1].name}" if runs else ""
    names = filter(None, map(_name, runs))
    hint = did_you_mean(str(path).removeprefix(NAME), ["latest", *names]) if str(path) != "latest" else ""
    if path.resolve() == Path(output_dir).resolve():
        hint = " Say latest for the newest run."
    return f"no run '{path}' in {Path(output_dir).absolute()} ({len(runs)} runs there{newest}){hint and f'.{hint}'}"


def read_config(folder: Path, trust: bool = False, typed: Sequence[str] = ()) -> Config:
    """Read the run's config.yaml. Raise UsageError (exit 8) if the file is missing or damaged.

    Raise UsageError, too, unless the user agrees to the modules that it names, as `consent` does.
    """
    path = folder / "config.yaml"
    node = read_run(path)
    consent(path, node, trust=trust, typed=typed)
    return build(with_new_keys(node))


def check_format(checkpoint: Path) -> None:
    """Raise UsageError (exit 8) if this drl-cli can't read the checkpoint's format. Call this before `read_config`."""
    manifest = read_json(checkpoint / "manifest.json")
    if manifest and (problem := other_format(manifest)):
        raise UsageError(f"{checkpoint}: {problem}", CHECKPOINT)


def find_runs(patterns: Sequence[str], output_dir: str) -> list[Path]:
    """Return the runs that match the patterns, oldest first. A pattern is as in `find_run`, or a folder of runs.

    A glob, the start of an id, or a name stands for all its runs.
    """
    if not patterns:
        raise UsageError("runs: names no run")
    runs, found, problems = all_runs(output_dir), set[Path](), list[str]()
    for pattern in patterns:
        folders = [Path(root, match) for root in (".", output_dir) for match in glob.glob(pattern, root_dir=root)]
        matches = {run for folder in folders for run in _runs_in(folder)}
        matches |= set(runs[-1:] if pattern == "latest" else (run for run in runs if run.name.startswith(pattern)))
        matches = matches or set(_named(pattern, runs))
        if not matches:
            hint = did_you_mean(pattern.removeprefix(NAME), filter(None, map(_name, runs)))
            where = f"{Path(output_dir).absolute()} ({len(runs)} runs there)"
            problems.append(f"no run '{pattern}' in {where}{hint and f'.{hint}'}")
        found |= {run.resolve() for run in matches}
    if problems:
        raise UsageError(problems)
    return sorted(found, key=lambda path: (path.name, path))


def is_folder_of_runs(name: str, output_dir: str) -> bool:
    """Return whether a path, relative to the current folder or to `output_dir`, is a folder with runs or sweeps.

    `output_dir` itself is not such a folder.
    """
    folders = [Path(root, name) for root in (".", output_dir)]
    return Path(output_dir).resolve() not in [folder.resolve() for folder in folders] and any(
        _runs_in(folder) not in ([], [folder]) for folder in folders
    )


def _runs_in(folder: Path) -> list[Path]:
    """Return the folder if it is a run, the runs of its jobs if it is a sweep, otherwise the runs in its subfolders.

    In a folder of sweeps, these are the runs of all sweeps.
    """
    if (folder / SWEEP_FILE).is_file():
        jobs = read_json(folder / SWEEP_FILE).get("jobs", [])
        started = [read_json(folder / f"{number}.json").get("run") or job["run"] for number, job in enumerate(jobs, 1)]
        return [Path(run) for run in started if run and (Path(run) / "run.json").is_file()]
    if sweeps := sorted(folder.glob(f"*/{SWEEP_FILE}")):
        return [run for sweep in sweeps for run in _runs_in(sweep.parent)]
    depths = ("run.json", "*/run.json", "*/*/run.json", "*/*/*/run.json")
    return next((found for depth in depths if (found := [path.parent for path in folder.glob(depth)])), [])
