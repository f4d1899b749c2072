"""What drl-eval found, in a run's folder: the last result in eval.json, every different one in a file of its own."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from drl_cli.runs.run import read_json
from drl_cli.runtime.files.checkpoint import write_json


def keep(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write eval.json, and eval-<checkpoint>-<n>.json where no such file holds this result yet; returns the latter.

    What eval.json held before is kept, too, if it is in no other file.
    """
    for each in (read_json(folder / "eval.json"), dict(result)):
        if each:
            kept = _copy(folder, each)
    write_json(folder / "eval.json", result)
    return kept


def _copy(folder: Path, result: Mapping[str, Any]) -> Path:
    """The file of its own that holds this result, made where there is none."""
    for i in count(1):
        path = folder / f"eval-{result['checkpoint']}-{i}.json"
        if not path.exists():
            write_json(path, result)
            return path
        if read_json(path) == result:
            return path
    raise AssertionError("count() does not end")
