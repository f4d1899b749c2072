"""Save results of drl-eval in a run's folder: the last result in eval.json, and a numbered copy of each result."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from drl_cli.runs.run import read_json
from drl_cli.runtime.files.checkpoint import write_json


def save_evaluation(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write eval.json. Copy its old and new content to eval-<checkpoint>-<n>.json. Return the new copy's path."""
    if earlier := read_json(folder / "eval.json"):
        _save_copy(folder, earlier)
    path = _save_copy(folder, result)
    write_json(folder / "eval.json", result)
    return path


def _save_copy(folder: Path, result: Mapping[str, Any]) -> Path:
    """Return the path of the copy of this result. Write the copy if there is none."""
    paths = (folder / f"eval-{result['checkpoint']}-{i}.json" for i in count(1))
    path = next(path for path in paths if not path.exists() or read_json(path) == result)
    if not path.exists():
        write_json(path, result)
    return path
