"""Measure a short real run in other processes, and choose workers, environments and threads by such runs."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.errors import RunError

Line = Mapping[str, float]
ENDLESS = 1_000_000_000
ROUNDS = 5
"""The reports in the measured time. The table shows the range of their rates."""
PATIENCE_S = 600.0
"""Maximum seconds for the start of the run and for its first transitions in replay."""


@dataclass(frozen=True)
class Pace:
    """The rates of a run, and the fractions of their time that workers and trainer spent waiting."""

    env_steps_per_s: float
    opt_steps_per_s: float
    worker_wait: float
    trainer_wait: float
    start_up_s: float
    rounds: tuple[float, ...] = ()
    reanalyzed_per_s: float = 0.0

    def __str__(self) -> str:
        """The pace as a line of the table that `HEAD` begins."""
        spread = f"{short(min(self.rounds))} - {short(max(self.rounds))}" if self.rounds else ""
        waits = f"{self.worker_wait:>8.0%} {self.trainer_wait:>8.0%}"
        rates = f"{short(self.env_steps_per_s):>12} {spread:>19} {short(self.opt_steps_per_s):>10} {self.ratio:>7.3g}"
        searched = f"   {short(self.reanalyzed_per_s)} re-analysed steps/s" if self.reanalyzed_per_s else ""
        return f"{rates} {waits} {self.start_up_s:>8.1f}{searched}"

    @property
    def ratio(self) -> float:
        """Updates per environment step."""
        return self.opt_steps_per_s / max(1e-9, self.env_steps_per_s)


HEAD = (
    f"{'env steps/s':>12} {'min - max':>19} {'updates/s':>10} {'ratio':>7} {'w. wait':>8} {'t. wait':>8} {'start s':>8}"
)
"""The head of a table of paces: `w. wait` and `t. wait` are the fractions of time that workers and trainer wait."""


def short(value: float) -> str:
    """Format a number with three significant digits, or without decimals from 1000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def measure(command: Sequence[str], config: Config, seconds: float) -> Pace:
    """Run `drl-train <command>`, whose config is `config`, and return its pace after the first updates.

    Raise RunError with the exit code of the run if the run ends before it is measured.
    """
    with tempfile.TemporaryDirectory(prefix="drl-bench-", ignore_cleanup_errors=True) as folder:
        with _started(overridden(command, *_ours(config, folder, seconds)), Path(folder)) as process:
            end = time.monotonic() + PATIENCE_S + seconds
            while not (lines := _measured(Path(folder), seconds)):
                if process.poll() is not None or time.monotonic() > end:
                    errors = (Path(folder) / "stderr").read_text().strip().removeprefix("error: ")
                    raise RunError(f"the run ended before it was measured: {errors}", max(1, process.poll() or 1))
                time.sleep(min(0.2, seconds / ROUNDS))
        (summary,) = Path(folder).glob("*/*/*/summary.json")
        return pace(lines, config, json.loads(summary.read_text())["start_up_s"])


def pace(lines: Sequence[Line], config: Config, start_up_s: float) -> Pace:
    """Compute the rates between the first and the last report. A round is the time between two successive reports."""

    def increase(name: str, first: Line = lines[0], last: Line = lines[-1]) -> float:
        return last[name] - first[name]

    wall = increase("perf/wall_s")
    members = config.worker.num_proxies or config.num_workers
    return Pace(
        increase("env_steps") / wall,
        increase("perf/opt_steps") / wall,
        min(1.0, increase("perf/worker_wait_s") / wall / members),
        min(1.0, increase("perf/trainer_wait_s") / wall),
        start_up_s,
        tuple(increase("env_steps", *pair) / increase("perf/wall_s", *pair) for pair in pairwise(lines)),
        increase("perf/reanalyzed_steps") / wall if config.reanalyzer.num else 0.0,
    )


def overridden(command: Sequence[str], *changes: str) -> list[str]:
    """Return the arguments of drl-train, but replace the values of the keys in `changes`, which are `key=value`."""
    keys = {change.partition("=")[0] for change in changes}
    return [*(arg for arg in command if arg.partition("=")[0].lstrip("+~") not in keys), *changes]


def _ours(config: Config, folder: str, seconds: float) -> list[str]:
    """Return overrides for a run that only collects and trains until it is stopped."""
    warm = min(config.min_inserts, 4 * config.trainer.batch_size)
    weights = [f"load_weights='{config.load_weights}'"] if config.load_weights else []  # already an absolute path
    return [
        *weights, f"output_dir='{folder}'", "stop.return=null", f"stop.wall_s={PATIENCE_S + seconds}",
        *(f"{key}={ENDLESS}" for key in ("total_env_steps", "manage.eval_period", "checkpoint.period")),
        "manage.eval_episodes=1", "manage.confirm_episodes=0", "checkpoint.replay=off", "logger.tensorboard=false",
        f"orchestrator.min_inserts={warm}", "worker.random_steps=0", f"logger.report_s={seconds / ROUNDS}",
    ]  # fmt: skip


def _measured(folder: Path, seconds: float) -> Sequence[Line]:
    """Return the reports that follow the first report with an update, or () if they cover less than `seconds`."""
    found = list(folder.glob("*/*/*/metrics.jsonl"))
    lines = found[0].read_text().splitlines(True) if found else []
    reports = [json.loads(line) for line in lines if line.endswith("\n")]
    training = [report for report in reports if report.get("perf/opt_steps")][1:]
    is_done = training and training[-1]["perf/wall_s"] - training[0]["perf/wall_s"] >= 0.99 * seconds
    return training if is_done else ()


@contextmanager
def _started(command: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the run, in a separate process group that Ctrl-C does not reach. Afterwards, end the run with SIGTERM."""
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
        train = [sys.executable, "-P", "-m", "drl_cli.cli.train", *command]
        process = subprocess.Popen(train, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, process_group=0)
    try:
        yield process
    finally:
        while process.poll() is None:  # the user may press Ctrl-C while the run ends
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
                process.wait(20)


BUSY = 0.1
"""Workers and trainer count as busy if both spend less than this fraction of their time waiting."""
ENVS = (8, 16, 32)
SLACK = 1.03
"""Measured rates within this factor count as equal."""


@dataclass(frozen=True, order=True)
class Setting:
    """The numbers that drl-bench tunes. Settings are ordered: a smaller setting needs fewer workers and threads."""

    workers: int
    threads: int
    envs: int

    @property
    def keys(self) -> list[str]:
        """The setting as overrides for drl-train."""
        return [f"worker.num={self.workers}", f"worker.envs={self.envs}", f"trainer.threads={self.threads}"]

    def of(self, config: Config) -> Config:
        """Return the config of an async run with this setting."""
        worker = replace(config.worker, num=self.workers, envs=self.envs)
        return replace(config, mode="async", worker=worker, trainer=replace(config.trainer, threads=self.threads))


def tune(own: Setting, cores: int, fits: Callable[[Setting], bool], measure: Callable[[Setting], Pace]) -> Setting:
    """Return the best setting: measure one number after another, each with the best values of those before.

    To measure all combinations would take hours. `own` is the run's setting, from which the search starts, and `fits`
    says whether a run can have a setting.
    """
    best, rates = own, dict[Setting, float]()
    powers = sorted({2**i for i in range(cores.bit_length())} | {cores})
    for name, values in (("envs", ENVS), ("workers", powers), ("threads", powers)):
        for one in [best, *(replace(best, **{name: value}) for value in values)]:
            if one not in rates and fits(one):
                rates[one] = measure(one).env_steps_per_s
        best = choose(rates) if rates else best
    return best


def choose(measured: Mapping[Setting, float]) -> Setting:
    """Return the smallest setting whose rate is within SLACK of the highest rate."""
    best = max(measured.values())
    return min(one for one, rate in measured.items() if rate * SLACK >= best)


def advice(pace: Pace, asked: float | None) -> list[str]:
    """Return lines that name the bottleneck, and the updates per step that would keep workers and trainer busy.

    `asked` is the configured number of updates per step, or None for an on-policy algorithm, which has no such key.
    """
    waits = f"workers wait {pace.worker_wait:.0%}, the trainer {pace.trainer_wait:.0%} of their time"
    if max(pace.worker_wait, pace.trainer_wait) < BUSY:
        return [f"both sides are busy: {waits}"]
    late = "trainer" if pace.worker_wait > pace.trainer_wait else "workers"
    lines = [f"the {late} {'is' if late == 'trainer' else 'are'} the bottleneck: {waits}"]
    if asked is not None:
        balanced = pace.ratio * (1 - min(0.99, pace.worker_wait)) / (1 - min(0.99, pace.trainer_wait))
        balanced = float(f"{balanced:.2g}")
        lines += [
            f"orchestrator.sample_insert_ratio={balanced:g} would keep both sides busy; it is {asked:g}, and stays "
            "so unless you say it: it changes what is learned per environment step"
        ]
    return lines
