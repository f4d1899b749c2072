import dataclasses

import numpy as np
import pytest
import torch
from graphs import COUNTER, TINY, make_config
from peers import together

from drl_cli.algos.base import Algorithm, Update
from drl_cli.api import Context
from drl_cli.envs.make import read_spec
from drl_cli.errors import AlgorithmFailed
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.trial_update import random_batch


def batches(*overrides):
    """Headers and columns of four train calls with two random batches each."""
    config, calls = make_config(*TINY, COUNTER, *overrides), []
    spec, params = read_spec(config.env), trainer(*overrides).publish(0, 0)[1]
    for call in range(4):
        seeds = (2 * call, 2 * call + 1)
        parts = [random_batch(dataclasses.replace(config, seed=seed), spec, params) for seed in seeds]
        columns = {name: np.concatenate([part[name] for _, part in parts]) for name in parts[0][1]}
        calls.append((dataclasses.replace(parts[0][0], num_batches=2), columns))
    return calls


def trainer(*overrides):
    config = make_config(*TINY, COUNTER, *overrides)
    return make_trainer(config, read_spec(config.env), "cpu", 0)


def test_torchs_global_generator_is_part_of_the_state():
    """A user's algorithm may draw from it."""
    one = trainer()
    state, expected = one.state(), torch.rand(3)
    other = trainer("seed=9")
    assert not torch.equal(torch.rand(3), expected)
    other.load_state(state)
    assert torch.equal(torch.rand(3), expected)


def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing():
    words = ("env.normalize_obs=true", "env.normalize_reward=true")
    one = trainer(*words)
    state, before = trainer(*words, "seed=9").state(), one.state()  # the second trainer seeds torch
    array = next(key for key in state if key.startswith("algorithm.optimizer."))
    bad = {**state, array: np.zeros((1, 1), np.float32), "algorithm.spare": np.zeros(2)}
    del bad["normalizer.before"], bad["opt_steps"]
    with pytest.raises(ValueError, match="does not fit") as caught:
        one.load_state(bad)
    for text in (
        f"{array} is float32[1, 1], needed is float32",
        "algorithm.spare is float64[2], needed is nothing",
        "normalizer.before is missing, needed is float64[9]",
        "opt_steps is missing",
    ):
        assert text in str(caught.value)
    after = one.state()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_a_trainer_continues_from_the_state_of_a_trainer_on_another_device():
    """The state of a CUDA generator has 16 bytes."""
    first, second, *_ = batches()
    one, others = trainer("seed=1"), [trainer("seed=2"), trainer("seed=3")]
    one.train(*first)
    state = one.state()
    (name,) = (name for name in state if "generator" in name)
    for other in others:
        other.load_state(state | {name: np.arange(16, dtype=np.uint8)})
        assert other.publish(1, 32)[1].tobytes() == one.publish(1, 32)[1].tobytes()
        other.train(*second)
    assert others[0].publish(2, 64)[1].tobytes() == others[1].publish(2, 64)[1].tobytes()


@pytest.mark.parametrize("skipped", [1, 2])
def test_metrics_are_means_over_the_updates_that_were_made(skipped):
    """Skipped updates do not count."""
    (_, columns), *_ = batches()
    good = {name: column[:1] for name, column in columns.items()}
    bad = good | {"reward": np.full_like(good["reward"], np.inf)}
    both = {name: np.concatenate([good[name], *[bad[name]] * skipped]) for name in good}
    plain, diluted = (trainer("trainer.on_nonfinite=skip") for _ in range(2))
    report, _ = plain.train(BatchTrainingData(1), good)
    other, _ = diluted.train(BatchTrainingData(1 + skipped), both)
    assert ((other.num_updates, other.skipped), other.metrics) == ((1, skipped), pytest.approx(report.metrics))
    assert any(abs(value) > 1e-3 for value in report.metrics.values())


class Alternating(Algorithm):
    """Returns a loss with its graph, and one more metric in every second update."""

    def __init__(self, context):
        net = torch.nn.Linear(3, 1)
        self.params = Params(context, net=net)
        self.optimizer = Optimizer(self.params, {"net": 1e-3}, context)
        self.net = net

    def update(self, batch, counts):
        loss = self.net(batch["obs"]).mean()
        self.optimizer.minimize(loss)
        return Update({"loss": loss} | ({"rare": torch.tensor(4.0)} if counts.opt_steps % 2 else {}))


def test_a_metric_is_averaged_over_the_updates_that_return_it():
    one = Trainer(Alternating, Context(torch.device("cpu")))
    report, _ = one.train(BatchTrainingData(4), {"obs": np.ones((4, 2, 3), np.float32)})
    assert report.metrics["rare"] == 4.0
    report, _ = one.train(BatchTrainingData(1), {"obs": np.ones((1, 2, 3), np.float32)})
    assert "rare" not in report.metrics


def test_rows_of_skipped_updates_keep_their_priorities():
    (_, columns), *_ = batches()
    one = trainer("trainer.on_nonfinite=skip")
    columns = {name: column.copy() for name, column in columns.items()}
    columns["reward"][0] = np.inf
    row_ids = np.arange(columns["reward"].size).reshape(columns["reward"].shape)
    report, priorities = one.train(BatchTrainingData(2, row_ids), columns)
    assert (report.num_updates, report.skipped) == (1, 1)
    assert priorities.row_ids.tolist() == row_ids[1:].tolist()
    assert priorities.priorities.shape == (1, 16)
    columns["reward"][1] = np.inf
    _, priorities = one.train(BatchTrainingData(2, row_ids), columns)
    assert priorities is None


class Stepper(Algorithm):
    """Steps by its rows; in update `when` it also adds its rank to a parameter of `second`."""

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
    """Return the number of train calls and the error of the last call."""
    trainer = Trainer(lambda context: Stepper(context, when), Context(torch.device("cpu"), group))
    rng = np.random.default_rng(group.rank)
    for call in range(calls):
        try:
            trainer.train(BatchTrainingData(1), {"reward": rng.standard_normal((1, 5), np.float32)})
        except AlgorithmFailed as error:
            return call + 1, str(error)
    return calls, None


@pytest.mark.parametrize(("when", "found"), [(0, 1), (2, 4), (5, 8), (65, 128), (128, 192)])
def test_drift_is_found_at_powers_of_two_and_every_64th_call(when, found):
    text = f"the trainers drifted apart: their parameters of 'second' differ by 0.25 after update {found}"
    for calls, error in together(train, when, 200):
        assert calls == found
        assert error.startswith(text)


def test_equal_trainers_never_drift():
    assert together(train, -1, 200) == ((200, None), (200, None))


class OwnStatistics(Algorithm):
    """A user's module with a running mean of the rows of its own trainer."""

    def __init__(self, context):
        net = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(net.weight)  # torch's default generator is shared by the two threads
        torch.nn.init.zeros_(net.bias)
        net.register_buffer("mean", torch.zeros(1))
        self.params, self.net = Params(context, net=net), net
        self.optimizer = Optimizer(self.params, {"net": 0.1}, context)

    def update(self, batch, counts):
        self.net.mean.copy_(batch["reward"].mean())
        self.optimizer.minimize(self.net(torch.ones(1, 1)).sum())
        return Update({"loss": batch["reward"].mean()})


def train_own_statistics(group):
    trainer = Trainer(OwnStatistics, Context(torch.device("cpu"), group))
    rewards = np.full((1, 5), group.rank, np.float32)
    with pytest.raises(AlgorithmFailed, match=r"their values of 'buffer\.net\.mean' differ by 1 after update 1\."):
        trainer.train(BatchTrainingData(1), {"reward": rewards})


def test_statistics_of_one_trainers_rows_are_drift():
    together(train_own_statistics)
