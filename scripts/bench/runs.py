"""Start runs of drl-train as a user does, and measure them from outside."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from drl_cli.runtime.place.usage import Usage

Line = Mapping[str, float]  # of metrics.jsonl

QUIET = (
    "manage.eval_period=1_000_000_000", "manage.eval_episodes=1", "manage.confirm_episodes=0",
    "logger.tensorboard=false", "checkpoint.period=1_000_000_000", "checkpoint.replay=off",
    "total_env_steps=1_000_000_000",
)  # fmt: skip
"""Overrides for runs that only collect and train, with one evaluation and checkpoint at the end."""


def watch(
    overrides: list[str], seconds: float, is_warm: Callable[[list[Line]], bool], checkout: Path | None = None
) -> dict[str, Any]:
    """Measure a run for `seconds` after its reports satisfy `is_warm`, then end the run.

    `checkout` is the folder of another commit of drl-cli, with a virtual environment `.venv`; None: this commit.

    Return `rates` (per second), `wait` (fractions of the time without work), `cpu` (processor seconds per second by
    role), `mb` (peak memory of the whole run by role) and the `summary`.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("w") as file:
            python = sys.executable if checkout is None else checkout / ".venv/bin/python"
            command = [python, "-m", "drl_cli.cli.train", *overrides, f"output_dir={folder}"]
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=checkout)
        try:
            usage = Usage(psutil.Process(process.pid))
            while not is_warm(lines := reports(folder)):
                nap(process, output)
            first, since, begun = lines[-1], time.perf_counter(), _cpu(usage)
            while (last := reports(folder)[-1])["perf/wall_s"] - first["perf/wall_s"] < seconds:
                nap(process, output)
            time.sleep(max(0.0, since + seconds - time.perf_counter()))  # reports may come late, and two at once
            looked_s = time.perf_counter() - since
            ended = _cpu(usage)
        finally:
            process.terminate()
            process.wait()
        summary = json.loads(next(Path(folder).glob("*/*/*/summary.json")).read_text())
    wall = last["perf/wall_s"] - first["perf/wall_s"]
    workers = sum(role.startswith("worker") for role in ended) or 1
    return {
        "rates": {
            "env steps": (last["env_steps"] - first["env_steps"]) / wall,
            "updates": (last["perf/opt_steps"] - first["perf/opt_steps"]) / wall,
        },
        "wait": {
            "worker": (last["perf/worker_wait_s"] - first["perf/worker_wait_s"]) / wall / workers,
            "trainer": (last["perf/trainer_wait_s"] - first["perf/trainer_wait_s"]) / wall,
        },
        "cpu": {role: (used - begun.get(role, 0.0)) / looked_s for role, used in ended.items()},
        "mb": {role: used["peak_rss_mb"] for role, used in summary["processes"].items()},
        "summary": summary,
    }


def spread(values: Sequence[float], form: str = ",.1f") -> str:
    """Return median, minimum and maximum."""
    return f"{median(values):{form}} ({min(values):{form}} - {max(values):{form}})"


def reports(folder: str) -> list[Line]:
    """Return the reports so far, from the first one with a step on."""
    found = list(Path(folder).glob("*/*/*/metrics.jsonl"))
    lines = [json.loads(line) for line in found[0].read_text().splitlines(True) if line.endswith("\n")] if found else []
    return [line for line in lines if line.get("env_steps") and "perf/wall_s" in line]


def _cpu(usage: Usage) -> dict[str, float]:
    usage.sample()
    return {role: used["cpu_s"] for role, used in usage.by_role().items()}


def nap(process: subprocess.Popen, output: Path) -> None:
    """Wait for new reports. Raise SystemExit with the output of the run if it has ended."""
    if process.poll() is not None:
        raise SystemExit(output.read_text())
    time.sleep(0.25)
