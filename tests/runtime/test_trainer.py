"""Trainer: what it answers with uniform and with prioritized replay."""

import numpy as np
import pytest
import torch

from drl_cli.algos.base import Update
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.trainer import Trainer
from drl_cli.utils.group import Group


class Fake:
    """Its priorities are the rewards; it notes what it is given."""

    def __init__(self, has_priorities=True):
        self.has_priorities, self.batches = has_priorities, []

    def update(self, batch):
        self.batches.append(batch)
        return Update({"loss": batch["reward"].mean()}, batch["reward"] if self.has_priorities else None)


def make(**options):
    fake = Fake(**options)
    return fake, Trainer(lambda learner: fake, "cpu", "float32", 1, Group())


def columns(weighted):
    plain = {"reward": np.arange(6, dtype=np.float32).reshape(2, 3)}
    return plain | {"weight": np.full((2, 3), 0.5, np.float32)} if weighted else plain


def test_priorities_come_with_the_numbers_of_their_rows():
    fake, trainer = make()
    sequence = np.array([[5, 6, 7], [9, 9, 2**40]])
    report, update = trainer.train(BatchTrainingData(3, 2, 3, 99, sequence), columns(True))
    assert (report.opt_steps, report.num_updates, report.metrics) == (2, 2, {"loss": 2.5})
    assert update.trainer == 3
    assert update.sequence.tolist() == sequence.tolist()
    assert update.priorities.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert all(torch.equal(batch["weight"], torch.full((3,), 0.5)) for batch in fake.batches)


@pytest.mark.parametrize("has_priorities", [False, True])
def test_uniform_replay_gets_no_priorities(has_priorities):
    fake, trainer = make(has_priorities=has_priorities)
    _, update = trainer.train(BatchTrainingData(0, 2, 3, 99), columns(False))
    assert update is None
    assert all("weight" not in batch for batch in fake.batches)


def test_prioritized_replay_needs_an_algorithm_with_priorities():
    _, trainer = make(has_priorities=False)
    with pytest.raises(ValueError, match="replay=uniform"):
        trainer.train(BatchTrainingData(0, 2, 3, 99, np.zeros((2, 3), np.int64)), columns(True))
