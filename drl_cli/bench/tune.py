"""Which numbers of workers, environments and threads to try, and which of those that were tried to take."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from drl_cli.bench.bounds import balanced_ratio
from drl_cli.bench.end_to_end import Pace
from drl_cli.runtime.config import Config

BUSY = 0.1
"""A side that waits for less than this share of its time is busy."""

ENVS = (8, 16, 32)
TRIED = 4
UNSURE = 1.1
"""How far a prediction may be off."""
SLACK = 1.03
"""Measured rates that differ by less than this factor count as equal."""


@dataclass(frozen=True, order=True)
class Setting:
    """What is tuned; the smaller one needs less of the machine."""

    workers: int
    threads: int
    envs: int

    @property
    def keys(self) -> list[str]:
        """As the user types it."""
        return [f"worker.num={self.workers}", f"worker.envs={self.envs}", f"trainer.threads={self.threads}"]

    def of(self, config: Config) -> Config:
        """A run with it."""
        worker = replace(config.worker, num=self.workers, envs=self.envs)
        return replace(config, mode="async", worker=worker, trainer=replace(config.trainer, threads=self.threads))


def settings(cores: int, threads: Iterable[int]) -> list[Setting]:
    """All that come into question; one worker less than cores leaves one to the trainer, as many keep all busy."""
    return [Setting(num, count, envs) for num in range(1, cores + 1) for count in threads for envs in ENVS]


def thread_counts(cores: int) -> list[int]:
    """Return the powers of two up to the number of cores, and that number."""
    return sorted({2**i for i in range(cores.bit_length())} | {cores})


def promising(predicted: Mapping[Setting, float], count: int = TRIED) -> list[Setting]:
    """Those to try: the smallest of those that may well be the fastest, then the others, the faster first."""
    close = max(predicted.values()) / UNSURE
    return sorted(predicted, key=lambda one: (-min(close, predicted[one]), one))[:count]


def choose(measured: Mapping[Setting, float]) -> Setting:
    """The smallest of those that are as fast as the fastest."""
    best = max(measured.values())
    return min(one for one, rate in measured.items() if rate * SLACK >= best)


def advice(pace: Pace, asked: float | None) -> list[str]:
    """Which side is the bottleneck, and the ratio that would keep both busy; `asked` is the one that was held.

    It is None where the ratio follows from how the algorithm learns (on-policy).
    """
    waits = f"workers wait {pace.worker_wait:.0%}, the trainer {pace.trainer_wait:.0%} of their time"
    if max(pace.worker_wait, pace.trainer_wait) < BUSY:
        return [f"both sides are busy: {waits}"]
    late = "trainer" if pace.worker_wait > pace.trainer_wait else "workers"
    lines = [f"the {late} {'is' if late == 'trainer' else 'are'} the bottleneck: {waits}"]
    if asked is not None:
        ratio = balanced_ratio(pace.ratio, pace.worker_wait, pace.trainer_wait)
        lines += [
            f"orchestrator.sample_insert_ratio={ratio:g} would keep both sides busy; it is {asked:g}, and stays so "
            "unless you say it: it changes what is learned per environment step"
        ]
    return lines
