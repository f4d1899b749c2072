"""Which checkpoint of a run is the last, which model is the best, and what is removed when, also by a resume.

All functions take the folder `checkpoints` of a run, which is here called `root`. Nothing is removed before something
newer that replaces it is complete on the disk. The links `last` and `best` may be missing, point to nothing, or be
folders in a copy of a run.

A resume cuts the records of a run (metrics.jsonl, eval.csv, event files, videos) at its checkpoint. Before, it links
the records into the folder `.resume` of the run, where they have numbers as names, so that TensorBoard ignores them.
If the run is killed before its first new checkpoint, the next resume can still continue from every checkpoint.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from drl_cli.errors import CheckpointError
from drl_cli.optim.schedules import RunClock
from drl_cli.runtime.files.checkpoint import COUNTERS, Checkpoint, load_model, point
from drl_cli.runtime.files.records import Cut, is_record, record_files
from drl_cli.utils.files import link, remove_folder, replace_file, sync_folder

FOLDER, LIST = ".resume", "resume.json"
BEST = "-best"
"""The end of the name of a folder that holds only a model, which was the best model when it was saved."""


@dataclass(frozen=True)
class LeftBehind:
    """The content of resume.json. `records` has the size in bytes of each record, which other processes may append to.

    `base` is the checkpoint from which the run resumed, "" for none. `steps` are all checkpoints at this moment, and
    `behind` are those that the run no longer needs after its first new checkpoint.
    """

    base: str
    steps: list[str]
    behind: list[str]
    records: Mapping[str, int]

    def write(self, folder: Path) -> None:
        replace_file(folder / LIST, json.dumps(asdict(self)).encode())


def left_behind(run: Path) -> LeftBehind | None:
    """Return what the last resume left behind, or None if a checkpoint was saved since."""
    try:
        found = LeftBehind(**json.loads((run / FOLDER / LIST).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return found if all(map(is_record, found.records)) else None


def linked(root: Path, name: str) -> Path | None:
    """Return the folder in `root` to which the link `name` points, or None if there is no such link or folder."""
    path = Path(os.path.realpath(root / name))
    is_there = path.parent == Path(os.path.realpath(root)) and path.is_dir() and path.name != name
    return root / path.name if is_there else None


def checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints, oldest first. They may be damaged."""
    return sorted((path for path in _folders(root) if not path.name.endswith(BEST)), key=_numbers)


def candidates(root: Path) -> list[Path]:
    """Return the checkpoints in the order in which a resume tries them: `last`, then all others, newest first."""
    paths = [linked(root, "last"), *checkpoints(root)[::-1], root / "last"]
    return list(dict.fromkeys(path for path in paths if path is not None and not path.is_symlink() and path.is_dir()))


def older(root: Path, base: Path) -> list[Path]:
    """Return the checkpoints before `base`, oldest first."""
    return [path for path in checkpoints(root) if _numbers(path) < _numbers(base)]


def replaced(root: Path) -> list[Path]:
    """Return the checkpoints that may be removed, because `last` replaces them, oldest first."""
    last = linked(root, "last")
    return [] if last is None else older(root, last)


def newer(root: Path, base: Path) -> list[Path]:
    """Return the checkpoints after `base`, which a run no longer needs after it resumed from `base`."""
    return [path for path in checkpoints(root) if _numbers(path) > _numbers(base)]


def best_model(root: Path) -> Path | None:
    """Return the complete model with the highest mean return, or None.

    The link `best` does not decide: it may be missing, or the run was killed before it changed the link.
    """
    models = sorted((path for path in _folders(root) if path.name.endswith(BEST)), key=_numbers, reverse=True)
    means = dict[Path, float]()
    for path in [*models, *(each for each in [root / "best"] if not each.is_symlink())]:
        try:
            means[path] = float(load_model(path)[1].get("mean", -math.inf))
        except CheckpointError:
            continue
    return max(means, key=lambda path: means[path], default=None)


def repair_best(root: Path) -> list[str]:
    """Let `best` point to the best model, or to nothing if there is none. Return a line if it pointed elsewhere."""
    link, best = root / "best", best_model(root)
    is_right = not os.path.lexists(link) if best is None else best in (link, linked(root, "best"))
    if is_right:
        return []
    point(root, "best", best)
    return [f"checkpoints/best was missing or damaged; it is now {best.name if best else 'no model'}"]


def settle(root: Path, keep_last: int) -> None:
    """Remove what a new checkpoint replaces: what a resume left behind, and all but the newest `keep_last`."""
    settle_resume(root)
    before = replaced(root)
    for path in before[: max(0, len(before) + 1 - keep_last)]:
        remove_folder(path)
    settle_best(root)


def settle_resume(root: Path) -> None:
    """Remove what the last resume left behind."""
    if (left := left_behind(root.parent)) is not None:
        for path in checkpoints(root):
            if path.name in left.behind:
                remove_folder(path)
        forget(root.parent)


def settle_best(root: Path) -> None:
    """Remove the models that `best` replaces. If `best` points to nothing, remove nothing."""
    kept = linked(root, "best")
    for path in _folders(root):
        if kept is not None and path.name.endswith(BEST) and path.name != kept.name:
            remove_folder(path)


def drop_drafts(root: Path) -> None:
    """Remove the folders of unfinished checkpoints, and what is left of removed checkpoints."""
    for path in root.glob(".step_*"):
        shutil.rmtree(path)


def cut_back(run: Path, checkpoint: Checkpoint | None, clock: RunClock) -> list[str]:
    """Cut the records of a run at the checkpoint from which it resumes. Let `last` point to the checkpoint.

    Return a line for each file with damaged records, and for a damaged best model. All checkpoints, and what is cut,
    are kept until the run has saved a new checkpoint: a run that is killed before can resume from each of them.
    Evaluations of later versions than the checkpoint's are cut, too. In mode=async, such a version may be of the same
    position as the checkpoint.
    """
    root, base, cut = run / "checkpoints", Path(), Cut(-1, -1, clock.unit)
    if checkpoint is not None:
        base, unfinished = checkpoint.folder, checkpoint.unfinished
        evaluated = clock.of(unfinished) - 1 if unfinished else clock.of(checkpoint.params_header)
        cut = Cut(clock.of(checkpoint), evaluated, clock.unit)
        if base.name != "last":  # not a link in a copy of a run
            point(root, "last", base)
    drop_drafts(root)
    for path in run.glob(".*.[0-9]*"):  # half-written files of killed processes, see `replace_file`
        if path.is_file() and (run / path.stem[1:]).exists():
            path.unlink()
    lines = repair_best(root)
    names = [path.name for path in checkpoints(root) if (path / COUNTERS).exists()]  # not a model alone
    left, behind = left_behind(run), [path.name for path in newer(root, base)]
    if left is None or not set(names) <= set(left.steps):  # the run was killed right after a new checkpoint
        left = _keep(run, LeftBehind(base.name, names, behind, {}))
    if left.base != base.name:  # the previous resume was from another checkpoint, and may have cut more
        for path in record_files(run):
            if str(path.relative_to(run)) not in left.records:  # the previous resume wrote it
                path.unlink()
        for number, (name, size) in enumerate(left.records.items()):
            content = (run / FOLDER / str(number)).read_bytes()[:size]
            (run / name).parent.mkdir(exist_ok=True)
            replace_file(run / name, content)
    lines += cut.apply(run)
    replace(left, base=base.name, behind=behind).write(run / FOLDER)
    return lines


def _keep(run: Path, left: LeftBehind) -> LeftBehind:
    """Keep the records of a run. Return `left` with their sizes."""
    folder, draft, records = run / FOLDER, run / f"{FOLDER}.draft", dict[str, int]()
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for number, path in enumerate(record_files(run)):
        if not link(path, draft / str(number)):
            shutil.copyfile(path, draft / str(number))
        records[str(path.relative_to(run))] = path.stat().st_size
    left = replace(left, records=records)
    left.write(draft)
    forget(run)
    draft.rename(folder)
    sync_folder(run)
    return left


def forget(run: Path) -> None:
    """Remove what the last resume left behind, but not its checkpoints."""
    if (run / FOLDER).exists():
        remove_folder(run / FOLDER)


def _folders(root: Path) -> list[Path]:
    return [path for path in root.glob("step_*") if path.is_dir()]


def _numbers(path: Path) -> list[int]:
    """Return the position, the version and the count in the name of a step folder, such as `step_000000010-v9-2`."""
    return [int(number) for number in re.findall(r"\d+", path.name)]
