"""Choose the numbers of workers, environments and threads, and predict how fast a run can be."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from drl_cli.bench.end_to_end import Pace
from drl_cli.bench.figures import Rate
from drl_cli.runtime.config import Config

BUSY = 0.1
"""Workers and trainer count as busy if both spend less than this fraction of their time waiting."""

ENVS = (8, 16, 32)
TRIED = 4
UNSURE = 1.1
"""The factor by which a predicted rate may differ from the measured rate."""
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


def thread_counts(cores: int) -> list[int]:
    """Return the powers of two up to `cores`, and `cores`."""
    return sorted({2**i for i in range(cores.bit_length())} | {cores})


def promising(predicted: Mapping[Setting, float]) -> list[Setting]:
    """Return the TRIED settings with the highest rates, and of almost equal rates (UNSURE) the smallest settings."""
    close = max(predicted.values()) / UNSURE
    return sorted(predicted, key=lambda one: (-min(close, predicted[one]), one))[:TRIED]


def choose(measured: Mapping[Setting, float]) -> Setting:
    """Return the smallest setting whose rate is within SLACK of the highest rate."""
    best = max(measured.values())
    return min(one for one, rate in measured.items() if rate * SLACK >= best)


def bound(mode: str, num_workers: int, cores: int, worker: Rate, trainer: Rate) -> tuple[float, str]:
    """Return an upper bound for the environment steps/s of a run, and the name of the bottleneck.

    `worker` is the rate of one worker. `trainer` is the highest rate of environment steps that the trainer can keep up
    with. With mode=async, workers and trainer run at the same time and share `cores` processors. In other modes they
    alternate.
    """
    processors = cores / (1 / worker.per_cpu_s + 1 / trainer.per_cpu_s)
    if mode == "async":
        limits = {"workers": num_workers * worker.per_s, "trainer": trainer.per_s, "processors": processors}
        least = min(limits, key=lambda name: limits[name])
        return limits[least], least
    collect = min(num_workers * worker.per_s, cores * worker.per_cpu_s)
    both = 1 / (1 / collect + 1 / trainer.per_s)
    return both, "workers" if collect < trainer.per_s else "trainer"


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
