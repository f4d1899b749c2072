"""Choose the checkpoint from which a run resumes: the newest complete one."""

import logging
from collections.abc import Iterable
from pathlib import Path

from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.runs.end_text import relative_path
from drl_cli.runs.run import Run
from drl_cli.runtime.files.checkpoint import damaged_files
from drl_cli.runtime.files.retention import candidates, linked, older
from drl_cli.runtime.restore import Checkpoint, is_replay, open_checkpoint

log = logging.getLogger(__name__)


def choose(run: Path, named: Path | None, needs_replay: bool) -> Checkpoint | None:
    """Return the checkpoint `named`, or the newest complete checkpoint of a run, or None if the run has saved nothing.

    Print a warning if it is not the one to which `last` points. Raise UsageError (exit 8) if no checkpoint is complete,
    or if `needs_replay` and the replay of the newest one is damaged: then the user chooses between losing the replay
    and losing the steps after an older checkpoint.
    """
    root = run / "checkpoints"
    problems = [] if named or linked(root, "last") else [f"{root / 'last'} is not a link to a checkpoint"]
    for path in [named] if named else candidates(root):
        try:
            checkpoint, damaged = _examine(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if damaged and needs_replay:
            other = _first_whole(reversed(older(root, path)))
            way = f"; to go on from the older {other.name}: resume={relative_path(other)}" if other else ""
            off = "to go on without its replay, which is then filled again: checkpoint.replay=off"
            raise UsageError(f"resume: {path / damaged[0]} is missing or damaged; {off}{way}", CHECKPOINT)
        if damaged:
            problems.append(f"{path / damaged[0]} is missing or damaged, and the replay is filled again")
        if problems:
            log.warning("%s; going on from %s", "; ".join(problems), path.name)
        return checkpoint.without_replay() if damaged else checkpoint
    if named is not None:
        other = _first_whole(each for each in candidates(root) if each.name != named.name)
        hint = f"; to go on from another one: resume={relative_path(other)}" if other else ""
        raise UsageError(f"resume: {problems[0]}{hint}", CHECKPOINT)
    if _has_results(run):
        hint = "no checkpoint is complete, and starting again would replace what the run has recorded"
        raise UsageError([f"resume: {'; '.join(problems)}; {hint}; from_config=RUN starts a new run"], CHECKPOINT)
    return None


def _examine(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Open a checkpoint and read all its files. Return it and the names of the damaged files of its replay.

    Raise CheckpointError if another file is missing or damaged.
    """
    checkpoint = open_checkpoint(folder)
    damaged = damaged_files(folder, checkpoint.manifest)
    if others := [name for name in damaged if not is_replay(name)]:
        raise CheckpointError(f"{folder / others[0]} is missing or damaged")
    return checkpoint, damaged


def _first_whole(folders: Iterable[Path]) -> Path | None:
    """Return the first of these checkpoints without a damaged file, or None."""
    for folder in folders:
        try:
            _, damaged = _examine(folder)
        except CheckpointError:
            continue
        if not damaged:
            return folder
    return None


def _has_results(run: Path) -> bool:
    """Return whether a run has saved a checkpoint or a model, damaged or not, or recorded a step."""
    found = Run(run)
    has_steps = bool(found.last_report.get(found.unit)) or bool((found.curve.positions > 0).any())
    return has_steps or any((run / "checkpoints").glob("step_*"))
