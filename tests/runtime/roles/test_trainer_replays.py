import numpy as np
import pytest
import torch
from choices import some
from test_trainer_chain import batches, make, train

from drl_cli.errors import AlgorithmFailed

OPTIMIZERS = [
    ("optimizer.name=adam", "optimizer.max_norm=0.5"),
    ("optimizer.name=adamw", "optimizer.weight_decay=0.01"),
    ("optimizer.name=sgd", "+optimizer.kwargs.momentum=0.9"),
    ("optimizer.name=rmsprop",),
    ("optimizer.name=radam",),
]


def assert_equal(one, two):
    states = [trainer.state() for trainer in (one, two)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name], name)


@pytest.mark.parametrize("schedule", some(["constant", "linear"], "linear"))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replays_compute_the_same_bits(optimizer, schedule):
    options = [*optimizer, f"optimizer.schedule={schedule}", "total_env_steps=4000"]
    plain, replayed = (make(f"trainer.compile={choice}", *options) for choice in ("false", "replay"))
    reports = [train(trainer, 4) for trainer in (plain, replayed)]
    assert_equal(plain, replayed)
    assert [report.metrics for report in reports[0]] == [report.metrics for report in reports[1]]
    assert plain.chain is None
    assert replayed.chain.why is None
    assert all(variant.calls for variant in replayed.chain._variants)


def test_a_schedule_of_an_optimizer_that_takes_numbers_runs_as_python():
    options = ["optimizer.name=adagrad", "optimizer.schedule=linear", "total_env_steps=4000"]
    plain, replayed = (make(f"trainer.compile={choice}", *options) for choice in ("false", "replay"))
    for trainer in (plain, replayed):
        train(trainer, 3)
    assert_equal(plain, replayed)
    assert "learning rate" in replayed.chain.why


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [OPTIMIZERS[0], OPTIMIZERS[2]])
def test_a_loaded_state_is_what_the_next_replays_change(optimizer):
    whole, first, second = (make("trainer.compile=replay", *optimizer, seed=seed) for seed in (0, 0, 1))
    train(whole, 5)
    train(first, 2)
    train(second, 2)
    second.load_state(first.state())
    train(second, 3, first=2)
    assert_equal(whole, second)


def test_an_error_in_a_replay_is_the_users():
    trainer = make("trainer.compile=replay", algo="dqn", env="CartPole-v1")
    columns = {**batches(0), "action": np.zeros((4, 8), np.int64)}
    columns |= {name: np.zeros((4, 8, 4), np.float32) for name in ("obs", "next_obs")}
    train(trainer, 2, columns=columns)
    type(trainer.algorithm).__module__, module = "my_algo", type(trainer.algorithm).__module__
    try:
        columns["action"] = columns["action"] + 7
        with pytest.raises(AlgorithmFailed, match="index 7 is out of bounds"):
            train(trainer, 1, columns=columns)
    finally:
        type(trainer.algorithm).__module__ = module


def test_a_skipped_update_is_not_replayed():
    trainer = make("trainer.compile=replay", "trainer.on_nonfinite=skip", algo="sac")
    assert [report.skipped for report in (*train(trainer, 2), *train(trainer, 1, bad=1))] == [0, 0, 1]
    assert all(bool(torch.isfinite(part.flat).all()) for part in [trainer.algorithm.params])
