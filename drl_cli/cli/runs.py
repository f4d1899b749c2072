"""Finding runs: by path, `latest`, a glob or the start of a run id."""

import glob
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from drl_cli.cli.errors import CHECKPOINT, UsageError
from drl_cli.cli.settings import build
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import other_format


def all_runs(output_dir: str) -> list[Path]:
    """Run folders below output_dir, oldest first."""
    return sorted((path.parent for path in Path(output_dir).glob("*/*/*/run.json")), key=lambda path: path.name)


def find_run(run: str, output_dir: str) -> Path:
    """The newest run that RUN means; raises UsageError when there is none."""
    path = Path(run)
    if (path / "run.json").is_file():
        return path.resolve()
    runs = all_runs(output_dir)
    if run == "latest":
        found: Sequence[Path] = runs
    else:
        named = [Path(match) for match in glob.glob(run) if (Path(match) / "run.json").is_file()]
        found = sorted([*(path for path in runs if path.name.startswith(run)), *named], key=lambda path: path.name)
    if not found:
        raise UsageError(f"no run '{run}' in {Path(output_dir).absolute()} ({len(runs)} runs there)")
    return found[-1].resolve()


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


def read_json(path: Path) -> dict[str, Any]:
    """A json file of a run; empty when it is not there (yet) or cut off."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content
