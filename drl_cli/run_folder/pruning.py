"""Which checkpoint of a run is the last, which model is the best, and what a new checkpoint or model removes.

All functions take the folder `checkpoints` of a run, which is here called `root`. Nothing is removed before something
newer that replaces it is complete on the disk. The links `last` and `best` may be missing, point to nothing, or be
folders in a copy of a run. What a resume removes is in `truncation`.
"""

import math
import os
import re
import shutil
from pathlib import Path

from drl_cli.errors import CheckpointError
from drl_cli.run_folder.checkpoint import load_model, point
from drl_cli.utils.files import remove_folder

BEST = "-best"
"""The end of the name of a folder that holds only a model, which was the best model when it was saved."""


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


def prune(root: Path, keep_last: int) -> None:
    """Remove the checkpoints and models that a new checkpoint replaces: all but the newest `keep_last`."""
    before = replaced(root)
    for path in before[: max(0, len(before) + 1 - keep_last)]:
        remove_folder(path)
    prune_best(root)


def prune_best(root: Path) -> None:
    """Remove the models that `best` replaces. If `best` points to nothing, remove nothing."""
    kept = linked(root, "best")
    for path in _folders(root):
        if kept is not None and path.name.endswith(BEST) and path.name != kept.name:
            remove_folder(path)


def remove_drafts(root: Path) -> None:
    """Remove the folders of unfinished checkpoints, and what is left of removed checkpoints."""
    for path in root.glob(".step_*"):
        shutil.rmtree(path)


def _folders(root: Path) -> list[Path]:
    return [path for path in root.glob("step_*") if path.is_dir()]


def _numbers(path: Path) -> list[int]:
    """Return the position, the version and the count in the name of a step folder, such as `step_000000010-v9-2`."""
    return [int(number) for number in re.findall(r"\d+", path.name)]
