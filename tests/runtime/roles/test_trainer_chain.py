import logging

import numpy as np
import pytest
import torch
from choices import some
from graphs import TINY, make_config
from interpreted import without_compiler

from drl_cli.chains.when import When
from drl_cli.envs.make import read_spec
from drl_cli.errors import Diverged
from drl_cli.runtime.factories import WORTH_A_WAIT, batches_per_shard, make_trainer, make_when, planned_updates
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.trial_update import single_trainer
from drl_cli.utils.run_clock import RunClock

CPU = torch.device("cpu")
UPDATES, ROWS = 4, 8
RATIO = "orchestrator.sample_insert_ratio=1"


@pytest.fixture(autouse=True)
def instant(monkeypatch):
    return without_compiler(monkeypatch)


def make(*overrides, algo="td3", seed=0, env="Pendulum-v1"):
    config = make_config(f"env={env}", f"algo={algo}", *TINY, "network.hidden=[16,16]", f"seed={seed}", *overrides)
    return make_trainer(config, read_spec(config.env), "cpu", 0)


def batches(seed, bad=None):
    """Return `UPDATES` batches; the reward of update `bad` is NaN."""
    rng = np.random.default_rng(seed)
    shape = (UPDATES, ROWS)
    columns = {name: rng.standard_normal((*shape, 3), np.float32) for name in ("obs", "next_obs")}
    columns |= {
        "action": rng.uniform(-1, 1, (*shape, 1)).astype(np.float32),
        "discount": np.full(shape, 0.9, np.float32),
    }
    columns |= {"reward": rng.standard_normal(shape, np.float32), "source": np.zeros(shape, np.int64)}
    columns |= {name: np.zeros(shape, bool) for name in ("terminated", "truncated")}
    if bad is not None:
        columns["reward"][bad, 3] = np.nan
    return columns


def train(trainer, calls, first=0, bad=None, columns=None):
    headers = {i: BatchTrainingData(UPDATES, env_steps=500 * i) for i in range(first, first + calls)}
    return [trainer.train(header, columns or batches(i, bad))[0] for i, header in headers.items()]


@pytest.mark.parametrize("algo", ["td3", "sac"])
@pytest.mark.parametrize("schedule", some(["constant", "linear"], "linear"))
@pytest.mark.parametrize("clock", [RunClock("env_steps", 2000), RunClock("opt_steps", 40)], ids=["steps", "updates"])
def test_a_trainer_with_compiled_updates_equals_one_without(algo, schedule, clock):
    options = [f"optimizer.schedule={schedule}", "total_env_steps=2000", "optimizer.max_norm=0.5"]
    plain, chained = (make(f"trainer.compile={choice}", *options, algo=algo) for choice in ("false", "true"))
    for trainer in (plain, chained):
        for context in (trainer.context, trainer.algorithm.optimizer.context):
            object.__setattr__(context, "clock", clock)
    first, reports = plain.state(), [train(trainer, 3) for trainer in (plain, chained)]
    states = [trainer.state() for trainer in (plain, chained)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        change = np.linalg.norm(array.astype(float) - first[name])
        assert np.linalg.norm(array.astype(float) - states[1][name]) <= 1e-4 * change + 1e-6, name
    for ours, theirs in zip(*reports, strict=True):
        assert (ours.opt_steps, ours.metrics) == (theirs.opt_steps, pytest.approx(theirs.metrics, rel=1e-3))
    assert reports[0][0].notes == ()
    assert [level for report in reports[1] for level, _ in report.notes] == [logging.INFO]
    assert chained.algorithm.optimizer.metrics()["lr"] == plain.algorithm.optimizer.metrics()["lr"]


@pytest.mark.slow
def test_a_resumed_trainer_continues_bit_for_bit():
    whole, first, second = (make("trainer.compile=true") for _ in range(3))
    train(whole, 5)
    train(first, 2)
    second.load_state(first.state())
    train(second, 3, first=2)
    loaded = make("trainer.compile=true", seed=1)
    train(loaded, 1)  # has programs of its own, which a loaded state must not leave behind
    loaded.load_state(first.state())
    train(loaded, 3, first=2)
    for trainer in (second, loaded):
        state = trainer.state()
        assert all(np.array_equal(array, state[name]) for name, array in whole.state().items())


@pytest.mark.parametrize("mode", ["single", "async"])
@pytest.mark.parametrize(("bad", "call"), some([(0, 0), (1, 0), (2, 1)], (2, 1)))
def test_an_update_that_is_not_finite_is_skipped_as_without_compilation(mode, bad, call):
    options = (f"mode={mode}", "trainer.on_nonfinite=skip")
    plain, chained = (make(f"trainer.compile={choice}", *options, algo="sac") for choice in ("false", "true"))
    for trainer in (plain, chained):
        reports = [train(trainer, 1, first=i, bad=bad if i == call else None)[0] for i in range(3)]
        assert [report.skipped for report in reports] == [int(i == call) for i in range(3)]
        assert [report.num_updates for report in reports] == [UPDATES - (i == call) for i in range(3)]
    for name, array in plain.state().items():
        np.testing.assert_allclose(array, chained.state()[name], rtol=1e-3, atol=1e-5)


def test_divergence_inside_a_program_names_the_update():
    messages = []
    for choice in ("false", "true"):
        trainer = make(f"trainer.compile={choice}")
        train(trainer, 2)
        with pytest.raises(Diverged) as error:
            train(trainer, 1, bad=2)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert f"at update {2 * UPDATES + 3}" in messages[0] or f"update {2 * UPDATES + 2}" in messages[0]


@pytest.mark.parametrize(
    ("overrides", "time"),
    [
        *[(("trainer.compile=false",), None), (("trainer.compile=true",), "before")],
        *[(("trainer.compile=true", "mode=sync"), "before"), (("trainer.compile=true", "mode=async"), "beside")],
        (("trainer.compile=true", "mode=async", "trainer.num=2"), "beside"),
        (("trainer.compile=true", "mode=sync", "trainer.num=2"), "before"),
        (("trainer.compile=true", "mode=sync", "trainer.num=2", "algo=ppo"), None),
        (("trainer.compile=auto", "mode=async", "trainer.num=2"), None),
        (("trainer.compile=auto", "total_env_steps=100000"), None),
        (("trainer.compile=auto", f"total_env_steps={WORTH_A_WAIT + 2000}", RATIO), "before"),
        (("trainer.compile=auto", "total_env_steps=100000", "mode=async"), "beside"),
    ],
)
def test_when_updates_are_compiled(overrides, time):
    config = make_config(
        *("env=Pendulum-v1", "algo=sac", "tuned=none", "mode=single", "orchestrator.min_inserts=1000"), *overrides
    )
    when = make_when(config, CPU)
    assert (when and when.time) == time
    assert make_when(config, torch.device("cuda")) is None
    if when is not None:
        is_auto = config.trainer.compile == "auto" and time == "beside"
        assert when.may_start() is not is_auto


def test_on_policy_runs_count_minibatches():
    config = make_config("env=CartPole-v1", "algo=ppo", "tuned=none", "total_env_steps=64000", "algo.epochs=3")
    assert planned_updates(config) == 64_000 * 3 // (config.algo.minibatch_size or config.trainer.batch_size)


def test_the_batches_of_a_shard_are_a_lower_bound_of_random_draws():
    one, four = (make_config("algo=sac", f"replay.shards={num}", "total_env_steps=100000") for num in (1, 4))
    share = batches_per_shard(one) // 4
    assert batches_per_shard(one) == one.num_updates
    assert share - 5 * share**0.5 < batches_per_shard(four) < share - 3 * share**0.5


def test_images_whose_frames_are_shared_are_not_recorded(monkeypatch):
    trainer = make("trainer.compile=true")
    assert isinstance(trainer.when, When)
    assert trainer.chain is not None
    algorithm = trainer.algorithm
    assert type(trainer)(lambda context: algorithm, algorithm.context, stackings={"": None}).chain is None


@pytest.mark.parametrize(("choice", "compiles"), [("auto", "replay"), ("true", True), ("false", False)])
def test_a_trial_does_not_wait_for_a_compilation_that_nobody_asked_for(choice, compiles):
    assert single_trainer(make_config("env=Pendulum-v1", f"trainer.compile={choice}"), 1).trainer.compile == compiles
