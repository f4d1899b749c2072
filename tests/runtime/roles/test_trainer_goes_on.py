"""A trainer as the program makes it: what its state holds, and what its report says of updates that were skipped."""

import numpy as np
import pytest
import torch
from graphs import COUNTER, TINY, make_config

from drl_cli.algos.base import Algorithm, Update
from drl_cli.envs.make import read_spec
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.messages import BatchTrainingData, SampleBatch
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.types import num_rows

NORMALIZED = ("env.normalize_obs=true", "env.normalize_reward=true")


@pytest.fixture
def batches(run_graph):
    """Headers and columns of train calls, drawn from the replay of a short run."""

    def draw(*overrides):
        graph = run_graph(COUNTER, "mode=sync", *overrides)
        sample = lambda: graph.replay.shards[0].call("sample", SampleBatch(2, 16), results=2)  # noqa: E731
        return [tuple(get(ref) for ref in sample()) for _ in range(4)]

    return draw


def trainer(*overrides):
    config = make_config(*TINY, COUNTER, *overrides)
    return make_trainer(config, read_spec(config.env), "cpu", 0)


@pytest.mark.parametrize(
    "overrides",
    [(), NORMALIZED, ("optimizer=sgd", "optimizer.max_norm=0.5"), ("optimizer=rmsprop",)],
    ids=["raw", "normalized", "sgd", "rmsprop"],
)
def test_another_trainer_goes_on_from_a_state_to_the_last_bit(batches, overrides):
    first, second, *rest = batches(*overrides)
    one, other = trainer("seed=1", *overrides), trainer("seed=2", *overrides)
    one.train(*first)
    one.train(*second)
    before = one.publish(1, 32)[1].tobytes()
    other.load_state(one.state())
    assert other.publish(1, 32)[1].tobytes() == before
    for batch in rest:
        ours, theirs = one.train(*batch)[0], other.train(*batch)[0]
        assert (ours.opt_steps, ours.metrics) == (theirs.opt_steps, theirs.metrics)
    assert one.publish(2, 64)[1].tobytes() == other.publish(2, 64)[1].tobytes() != before


def test_the_normalizers_own_counts_go_on(batches):
    """What was seen before the state counts with what comes after: here nothing does."""
    first, *_ = batches(*NORMALIZED)
    one, other = trainer(*NORMALIZED), trainer(*NORMALIZED)
    fresh = other.publish(0, 0)[1]
    one.train(*first)
    other.load_state(one.state())
    header = BatchTrainingData(0, first[0].num_batches, first[0].batch_size, first[0].inserts)
    one.train(header, first[1])
    other.train(header, first[1])
    (_, ours), (_, theirs) = one.publish(2, 32), other.publish(2, 32)
    assert ours.tobytes() == theirs.tobytes()
    layout = one.normalizer.layout.size
    assert not np.array_equal(ours[-2 * layout :], fresh[-2 * layout :])


def test_torchs_own_generator_goes_on():
    """Nothing of ours draws from it; an algorithm of the user's may."""
    one = trainer()
    state, expected = one.state(), torch.rand(3)
    other = trainer("seed=9")
    assert not torch.equal(torch.rand(3), expected)
    other.load_state(state)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("skipped", [1, 2])
def test_metrics_are_means_over_the_updates_that_were_made(batches, skipped):
    """Those that were left out, not being finite, do not dilute them."""
    (_, columns), *_ = batches()
    good = {name: column[:1] for name, column in columns.items()}
    bad = good | {"reward": np.full_like(good["reward"], np.inf)}
    both = {name: np.concatenate([good[name], *[bad[name]] * skipped]) for name in good}
    alone, diluted = (trainer("trainer.on_nonfinite=skip") for _ in range(2))
    report, _ = alone.train(BatchTrainingData(0, 1, num_rows(good), 99), good)
    other, _ = diluted.train(BatchTrainingData(0, 1 + skipped, num_rows(good), 99), both)
    assert (other.num_updates, other.skipped) == (1, skipped)
    assert other.metrics == pytest.approx(report.metrics)
    assert any(abs(value) > 1e-3 for value in report.metrics.values())


class Now(Algorithm):
    """Gives a loss with its graph, and every second time one more metric."""

    def __init__(self, context):
        net = torch.nn.Linear(3, 1)
        self.params = Params(context, net=net)
        self.optimizer = Optimizer(self.params, {"net": 1e-3}, context)
        self.net = net

    def update(self, batch, counts):
        loss = self.net(batch["obs"]).mean()
        self.optimizer.minimize(loss)
        return Update({"loss": loss} | ({"rare": torch.tensor(4.0)} if counts.opt_steps % 2 else {}))


def test_a_metric_is_averaged_over_the_updates_that_give_it():
    one = Trainer(Now, Context(torch.device("cpu")))
    report, _ = one.train(BatchTrainingData(0, 4, 2, 99), {"obs": np.ones((4, 2, 3), np.float32)})
    assert report.metrics["rare"] == 4.0
    report, _ = one.train(BatchTrainingData(0, 1, 2, 99), {"obs": np.ones((1, 2, 3), np.float32)})
    assert "rare" not in report.metrics


def test_rows_of_skipped_updates_keep_their_priorities(batches):
    (_, columns), *_ = batches()
    one = trainer("trainer.on_nonfinite=skip")
    columns = {name: column.copy() for name, column in columns.items()}
    columns["reward"][0] = np.inf
    row_ids = np.arange(columns["reward"].size).reshape(columns["reward"].shape)
    report, priorities = one.train(BatchTrainingData(0, 2, 16, 99, row_ids), columns)
    assert (report.num_updates, report.skipped) == (1, 1)
    assert priorities.row_ids.tolist() == row_ids[1:].tolist()
    assert priorities.priorities.shape == (1, 16)
    columns["reward"][1] = np.inf
    _, priorities = one.train(BatchTrainingData(0, 2, 16, 99, row_ids), columns)
    assert priorities is None
