import pytest
import torch

from drl_cli.algos.base import Algorithm, Counts, Update
from drl_cli.api import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.optim.params import Params
from drl_cli.utils.run_clock import RunClock


class Pair(Algorithm):
    """Makes one step of the first part, then one step of the second part by the batch."""

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
def test_a_second_step_that_is_not_finite_undoes_the_first(name, updates):
    algorithm = Pair(Context(torch.device("cpu"), skips=True, optimizer=OptimizerConfig(name)))
    good, bad = {"obs": torch.ones(3, 2)}, {"obs": torch.full((3, 2), torch.inf)}
    for _ in range(updates):
        assert algorithm.learn(good, Counts()).steps == 1
    before, update = algorithm.state(), algorithm.learn(bad, Counts())
    assert (update.steps, update.skipped) == (0, 1)
    after = algorithm.state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    algorithm.learn(good, Counts())
    assert not torch.equal(algorithm.state()["params"], before["params"])


def test_policy_params_are_only_the_policys_parts():
    algorithm, other = Pair(Context(torch.device("cpu"))), Pair(Context(torch.device("cpu")))
    assert algorithm.exploration(1000) == {}
    params = algorithm.policy_params()
    assert params.tolist() == algorithm.params["first"].flat.tolist()
    second = other.params["second"].flat.clone()
    other.load_policy(params)
    assert other.policy_params().tolist() == params.tolist()
    assert torch.equal(other.target.flat, algorithm.params["first"].flat)
    assert torch.equal(other.params["second"].flat, second)


def test_learning_rates_follow_the_environment_steps():
    config = OptimizerConfig(schedule="linear")
    algorithm = Pair(Context(torch.device("cpu"), optimizer=config, clock=RunClock(total=100)))
    algorithm.learn({"obs": torch.ones(3, 2)}, Counts(opt_steps=3, env_steps=75))
    assert algorithm.optimizer.metrics()["lr"] == pytest.approx(0.25e-2)
