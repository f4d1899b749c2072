"""Algorithm.learn with trainer.on_nonfinite=skip: all of an update, or nothing of it."""

import pytest
import torch

from drl_cli.algos.base import Algorithm, Counts, Update
from drl_cli.utils.group import Context
from drl_cli.utils.optimizer import Optimizer
from drl_cli.utils.optimizer_config import OptimizerConfig
from drl_cli.utils.params import Params


class Pair(Algorithm):
    """Steps one part down its values, then the other down the batch's."""

    policy_parts = ("first",)

    def __init__(self, context):
        self.modules = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
        self.params = Params(context, first=self.modules[0], second=self.modules[1])
        self.target = self.params.target("first")
        self.optimizer = Optimizer(self.params, {"first": 1e-2, "second": 1e-2}, context)

    def update(self, batch, counts):
        first, second = self.modules
        self.optimizer.minimize(first(torch.ones(3, 2)).sum(), "first")
        self.params.follow(0.5)
        self.optimizer.minimize(second(batch["obs"]).sum(), "second")
        return Update({})


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("name", ["adam", "rmsprop", "adagrad"])
def test_a_second_step_that_is_not_finite_takes_the_first_one_back(name, updates):
    algorithm = Pair(Context(torch.device("cpu"), skips=True, optimizer=OptimizerConfig(name)))
    good, bad = {"obs": torch.ones(3, 2)}, {"obs": torch.full((3, 2), torch.inf)}
    for _ in range(updates):
        assert algorithm.learn(good, Counts()).steps == 1
    before = algorithm.state()
    update = algorithm.learn(bad, Counts())
    assert (update.steps, update.skipped) == (0, 1)
    after = algorithm.state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    algorithm.learn(good, Counts())
    assert not torch.equal(algorithm.state()["params"], before["params"])
