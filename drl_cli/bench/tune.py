"""Choose the numbers of workers, environments and threads by short runs in mode=async."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from drl_cli.bench.pace import Pace
from drl_cli.runtime.config import Config

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
