"""Measure gradient updates of the run's trainer with batches from a full replay table."""

from collections.abc import Mapping, Sequence
from functools import partial

from drl_cli.bench.figures import ROUNDS, Rate, in_turn, timed
from drl_cli.bench.replay import Replaying
from drl_cli.runtime.config import Config
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.trial import single_trainer
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import torch


def lone_trainer(config: Config, spec: EnvSpec, threads: int = 1) -> Trainer:
    """Return one of the run's trainers. It does not average gradients with other trainers."""
    return make_trainer(single_trainer(config, threads), spec, config.device, 0)


class Updating:
    """A trainer, and the replay table from which it learns."""

    def __init__(self, replaying: Replaying, spec: EnvSpec, threads: int) -> None:
        self.replaying, self.threads = replaying, threads
        self.trainer = lone_trainer(replaying.config, spec, threads)
        self.updates_per_batch = 1.0

    def train(self) -> int:
        """Draw batches and train on them. Return the number of gradient updates."""
        header, columns = self.replaying.draw(self.replaying.config.updates_per_call)
        report, priorities = self.trainer.train(header, columns)
        if priorities is not None:
            self.replaying.replay.update_priorities(priorities)
        self.updates_per_batch = report.num_updates / report.num_batches
        return report.num_updates

    def play(self, seconds: float) -> Rate:
        torch.set_num_threads(self.threads)  # all trainers share this setting of the process
        return timed(self.train, seconds)


def measure(sides: Sequence[Updating], seconds: float) -> Mapping[int, Sequence[Rate]]:
    """Measure every trainer for `seconds`. Return the rate of each round, by the trainer's number of threads."""
    for side in sides:
        side.play(0.0)
    return in_turn({side.threads: partial(side.play, seconds / ROUNDS) for side in sides})
