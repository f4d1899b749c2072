"""A short real run, in processes of its own and a folder that is gone afterwards."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from drl_cli.bench.figures import ROUNDS
from drl_cli.bench.overrides import overridden
from drl_cli.errors import RunError
from drl_cli.runtime.config import Config

Line = Mapping[str, float]
ENDLESS = 1_000_000_000
PATIENCE_S = 600.0
"""For starting and filling, besides the time that is measured; then a run ends even if nobody is there to stop it."""


class RunFailed(RunError):
    """The run ended before it was measured; the message is what it said."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(frozen=True)
class Pace:
    """What a run did while it was measured: rates, their rounds, and shares of the time in which a side waited."""

    env_steps_per_s: float
    opt_steps_per_s: float
    worker_wait: float
    trainer_wait: float
    start_up_s: float
    rounds: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """Updates per environment step."""
        return self.opt_steps_per_s / max(1e-9, self.env_steps_per_s)


def measure(command: Sequence[str], config: Config, seconds: float) -> Pace:
    """The pace of `drl-train <command>`, from its first updates on; `config` is what that makes.

    Raises RunFailed.
    """
    with tempfile.TemporaryDirectory(prefix="drl-bench-", ignore_cleanup_errors=True) as folder:
        with _started(overridden(command, *_ours(config, folder, seconds)), Path(folder)) as process:
            end = time.monotonic() + PATIENCE_S + seconds
            while not (lines := _measured(_reports(folder), seconds)):
                if process.poll() is not None or time.monotonic() > end:
                    said = (Path(folder) / "stderr").read_text().strip().removeprefix("error: ")
                    raise RunFailed(f"the run ended before it was measured: {said}", max(1, process.poll() or 1))
                time.sleep(min(0.2, seconds / ROUNDS))
        (summary,) = Path(folder).glob("*/*/*/summary.json")
        return pace(lines, config, json.loads(summary.read_text())["start_up_s"])


def pace(lines: Sequence[Line], config: Config, start_up_s: float) -> Pace:
    """Between the first and the last of these reports; the rounds are between each and the next."""

    def gone(name: str, first: Line = lines[0], last: Line = lines[-1]) -> float:
        return last[name] - first[name]

    wall = gone("perf/wall_s")
    members = config.num_proxies or config.num_workers
    return Pace(
        gone("env_steps") / wall,
        gone("perf/opt_steps") / wall,
        min(1.0, gone("perf/worker_wait_s") / wall / members),
        min(1.0, gone("perf/trainer_wait_s") / wall),
        start_up_s,
        tuple(gone("env_steps", *pair) / gone("perf/wall_s", *pair) for pair in pairwise(lines)),
    )


def _ours(config: Config, folder: str, seconds: float) -> list[str]:
    """Settings by which the run goes on until it is stopped, and does nothing but collect and train."""
    warm = min(config.orchestrator.min_inserts, 4 * config.trainer.batch_size)
    weights = config.load_weights and [
        f"load_weights='{config.load_weights}'"
    ]  # named without the output_dir of the user
    return [
        *(weights or ()), f"output_dir='{folder}'", "stop.return=null", f"stop.wall_s={PATIENCE_S + seconds}",
        *(f"{key}={ENDLESS}" for key in ("total_env_steps", "manage.eval_period", "checkpoint.period")),
        "manage.eval_episodes=1", "manage.confirm_episodes=0", "checkpoint.replay=off", "logger.tensorboard=false",
        f"orchestrator.min_inserts={warm}", "worker.random_steps=0", f"logger.report_s={seconds / ROUNDS}",
    ]  # fmt: skip


def _reports(folder: str) -> list[Line]:
    """Those that the run has made so far."""
    found = list(Path(folder).glob("*/*/*/metrics.jsonl"))
    lines = found[0].read_text().splitlines(True) if found else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _measured(lines: Sequence[Line], seconds: float) -> Sequence[Line]:
    """The reports over so many seconds that begin a whole report after the first update; nothing before."""
    training = [line for line in lines if line.get("perf/opt_steps")][1:]
    is_done = training and training[-1]["perf/wall_s"] - training[0]["perf/wall_s"] >= 0.99 * seconds
    return training if is_done else ()


@contextmanager
def _started(command: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The run, in a process group of its own so that a terminal's Ctrl-C comes to us alone; ended softly."""
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
        train = [sys.executable, "-m", "drl_cli.cli.train", *command]
        process = subprocess.Popen(train, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, process_group=0)
    try:
        yield process
    finally:
        while process.poll() is None:  # once more where it does not end, or the user can't wait
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
                process.wait(20)
