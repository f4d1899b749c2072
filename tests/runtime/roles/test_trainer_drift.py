"""Trainers whose parameters come to differ are stopped by name; those that only step never are."""

import numpy as np
import pytest
import torch
from peers import on_group, peers

from drl_cli.algos.base import Algorithm, Update
from drl_cli.errors import AlgorithmFailed
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.trainer import Trainer


class Stepper(Algorithm):
    """Steps by its own rows; in update `when` it changes a parameter of `second` itself, by its rank."""

    def __init__(self, context, when):
        self.params = Params(context, first=3, second=2)
        self.optimizer = Optimizer(self.params, {"first": 0.1, "second": 0.1}, context)
        self.rank, self.when = context.group.rank, when

    def update(self, batch, counts):
        self.params.grad.copy_(batch["reward"])
        self.optimizer.step()
        if counts.opt_steps == self.when:
            self.params["second"].flat[1] += 0.25 * self.rank
        return Update({"loss": batch["reward"].mean()})


def train(group, when, calls):
    """How many train calls were made, and what they failed with."""
    trainer = Trainer(lambda context: Stepper(context, when), Context(torch.device("cpu"), group))
    rng = np.random.default_rng(group.rank)
    for call in range(calls):
        try:
            trainer.train(BatchTrainingData(0, 1, 5, 99), {"reward": rng.standard_normal((1, 5), np.float32)})
        except AlgorithmFailed as error:
            return call + 1, str(error)
    return calls, None


@pytest.fixture(scope="module")
def pair():
    with peers(2) as ranks:
        yield ranks


@pytest.mark.parametrize(("when", "found"), [(0, 1), (4, 8), (64, 128), (128, 192)])
def test_a_parameter_that_differs_is_found_and_named(pair, when, found):
    for call in [rank.submit(on_group, train, when, 200) for rank in pair]:
        calls, error = call.result()
        assert calls == found
        assert error.startswith(
            f"the trainers drifted apart: their parameters of 'second' differ by 0.25 after update {found}"
        )


@pytest.mark.parametrize(("when", "found"), [(1, 2), (2, 4), (3, 4), (5, 8), (32, 64), (65, 128)])
def test_it_is_looked_for_at_powers_of_two_and_every_64th_call(pair, when, found):
    for call in [rank.submit(on_group, train, when, 200) for rank in pair]:
        assert call.result()[0] == found


def test_equal_trainers_never_drift(pair):
    for call in [rank.submit(on_group, train, -1, 200) for rank in pair]:
        assert call.result() == (200, None)
