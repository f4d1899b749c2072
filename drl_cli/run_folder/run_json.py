"""Make the folder of a run, and write run.json and summary.json."""

import datetime
import logging
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drl_cli.config.config import Config
from drl_cli.config.exploration import all_exponents
from drl_cli.errors import RUN_STATUS
from drl_cli.run_folder.checkpoint import write_json
from drl_cli.utils.clock import stamp_after
from drl_cli.utils.outside import source_file, source_hash
from drl_cli.utils.run_clock import Unit
from drl_cli.version import versions

log = logging.getLogger(__name__)


def make_folder(config: Config) -> Path:
    """Create and return a run folder: <output_dir>/<env>/<algo>-<mode>/<time>-s<seed>.

    The time is later than that of every other run in output_dir, so that the order of the names is the order of starts.
    """
    env, algo = (name.replace("/", "_").replace(":", "_") for name in (config.env.name, config.algo_name))
    root = Path(config.output_dir).absolute()
    parent = root / env / f"{algo}-{config.mode}"
    while True:
        stamp = stamp_after(path.name for path in root.glob("*/*/*-s*"))
        folder = parent / f"{stamp}-s{config.seed}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # another job made this folder in the same microsecond
            continue
        (folder / "workers").mkdir()
        (folder / "checkpoints").mkdir()
        return folder


def code_hashes(config: Config) -> dict[str, str]:
    """Return, by module, the sha256 of each source file that the run uses from outside this package."""
    files = {module: source_file(module) for module in config.outside_modules}
    return {module: source_hash(file) for module, file in files.items() if file is not None}


def description(config: Config) -> dict[str, Any]:
    """Return the values of the keys with which the user describes the run, for run.json."""
    return {"name": config.name, "tags": list(config.tags), "notes": config.notes}


def resumed_record(
    record: dict[str, Any], command: list[str], unit: Unit, position: int, changes: list[str]
) -> dict[str, Any]:
    """Return the content of run.json for a run that resumes at `position` with the changed keys `changes`."""
    resumption = {"command": command, "when": now_text(), unit: position, "changes": changes}
    process = {"status": "running", "pid": os.getpid(), "host": socket.gethostname(), "git_commit": _git_commit()}
    return record | process | {"resumed": [*record.get("resumed", []), resumption]}


def run_record(config: Config, folder: Path, command: list[str]) -> dict[str, Any]:
    """Return the content of run.json for a new run."""
    return {
        "id": folder.name,
        "status": "running",
        "command": command,
        "from_config": config.from_config,
        **description(config),
        "algo": config.algo_name,
        "started": now_text(),
        "seed": config.seed,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "versions": versions("ray", "torch", "gymnasium", "numpy", "hydra-core"),
        "git_commit": _git_commit(),
        "code": code_hashes(config),
        "cpus": os.cpu_count(),
        "exploration_exponents": all_exponents(config.worker.exploration, config.num_workers, config.worker.envs),
    }


def write_end(
    folder: Path, config: Config, record: dict[str, Any], exit_code: int, results: Mapping[str, Any], **facts: Any
) -> dict[str, Any]:
    """Write summary.json with the run's `results`, and the final run.json with more `facts`. Return the summary."""
    status = RUN_STATUS.get(exit_code, "failed")
    summary: dict[str, Any] = {
        "run_id": record["id"],
        "status": status,
        "exit_code": exit_code,
        "env": config.env.name,
        "algo": config.algo_name,
        "mode": config.mode,
        "seed": config.seed,
        **results,
    }
    for name in ("best", "last"):
        link = folder / "checkpoints" / name
        summary[f"checkpoint_{name}"] = f"checkpoints/{os.readlink(link)}" if link.is_symlink() else None
    try:
        write_json(folder / "summary.json", summary)
        write_json(folder / "run.json", record | facts | {"status": status, "ended": now_text()})
    except OSError as error:  # on a full disk, the summary is still printed
        log.warning("the summary could not be written: %s", error)
    return summary


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def now_text() -> str:
    """Return the present UTC time, for run.json."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
