"""What every built-in algorithm has to do, in addition to the public contract."""

import dataclasses
import shutil
from typing import get_type_hints

import numpy as np
import pytest
import torch
from choices import some
from confs import algo_config

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Counts
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.api import Context
from drl_cli.errors import Diverged
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.replay.builders import RolloutBuilder
from drl_cli.runtime.files.checkpoint import read_arrays, write_arrays
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.batch_normalizer import BatchNormalizer
from drl_cli.runtime.roles.normalization import Layout
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.settings.algorithm import refusal
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec, transition_schema
from drl_cli.utils.moments import RunningMoments

CPU = Context(torch.device("cpu"))
NETWORK = NetworkConfig((16, 16), "relu", "uniform")
ACTIONS = {
    "box": ActionSpec("box", 2, "Box(2,)"),
    "discrete": ActionSpec("discrete", 4, "Discrete(4)"),
    "multidiscrete": ActionSpec("multidiscrete", 7, "MultiDiscrete([4 3])", (4, 3)),
}
CASES = [(name, kind) for name in algorithms() for kind in load_algorithm(name).ACTIONS]
FIRST = [(name, kind) for name, kind in CASES if kind == load_algorithm(name).ACTIONS[0] or name == "ppo"]

pytestmark = pytest.mark.parametrize(("name", "kind"), some(CASES, *FIRST), ids=["-".join(case) for case in CASES])


class Case:
    """An algorithm with its own yaml on one kind of action space, observations `[3, 2]`."""

    def __init__(self, name, kind):
        self.module = load_algorithm(name)
        self.spec = EnvSpec("x", Column((3, 2), "float32"), ACTIONS[kind])
        self.config = algo_config(name, self.module.Config)
        extra = self.module.Policy.extra_columns(self.config, NETWORK, self.spec)
        if "fifo-once" in self.module.TABLES:
            extra = {**extra, **RolloutBuilder.extra_columns}
        self.schema = transition_schema(self.spec, extra)

    def algorithm(self, seed=0, context=CPU):
        torch.manual_seed(seed)  # as in a trainer
        return self.module.Algorithm(self.config, NETWORK, self.spec, seed, context)

    def policy(self, seed=0):
        policy = self.module.Policy(self.config, NETWORK, self.spec, seed)
        policy.load(self.algorithm().policy_params())
        return policy

    def obs(self, rows):
        return np.random.default_rng(5).standard_normal((rows, 3, 2)).astype(np.float32)

    def batch(self, seed=0, rows=16):
        """Rows as a worker would make them."""
        rng = np.random.default_rng(seed)
        columns = self.policy(seed).random(self.obs(rows))
        columns |= {
            "obs": rng.standard_normal((rows, 3, 2)).astype(np.float32),
            "next_obs": rng.standard_normal((rows, 3, 2)).astype(np.float32),
            "reward": rng.standard_normal(rows).astype(np.float32),
            "terminated": rng.random(rows) < 0.2,
            "truncated": rng.random(rows) < 0.2,
        }
        columns["discount"] = np.where(columns["terminated"], 0, 0.99).astype(np.float32)
        if "fifo-once" in self.module.TABLES:
            columns["cut"] = columns["terminated"] | columns["truncated"]
        assert columns.keys() == self.schema.keys()
        return {key: torch.from_numpy(column) for key, column in columns.items()}


@pytest.fixture
def case(name, kind):
    return Case(name, kind)


def test_module(name, kind, case):
    assert case.module.__doc__
    assert set(case.module.MODES) <= {"single", "sync", "async", "offline"}
    assert issubclass(case.module.Config, AlgoConfig)
    assert case.config.name == name
    assert set(get_type_hints(case.module.Config)) == {field.name for field in dataclasses.fields(case.config)}
    assert refusal(name, case.spec, case.module.MODES[0], case.module.TABLES[0]) is None


def test_the_public_contract(name, kind):
    options = load_algorithm(name).Config.__dataclass_fields__
    few = [f"algo.{option}=2" for option in ("epochs", "simulations") if option in options]
    env = f"env=drl_cli.envs.probes:{ {'box': 'Reach', 'discrete': 'Choose', 'multidiscrete': 'Switches'}[kind] }-v0"
    check_algorithm(name, env, "network.hidden=[16,16]", *few)


def test_priorities_are_errors_without_weights(name, case):
    plain, weighted = case.algorithm(), case.algorithm()
    update = plain.learn(case.batch(), Counts())
    assert update.metrics
    assert (update.priorities is not None) == bool({"prioritized", "windows"} & set(case.module.TABLES))
    if update.priorities is not None:
        other = weighted.learn(case.batch() | {"weight": torch.linspace(0.1, 1.0, 16)}, Counts())
        assert torch.equal(update.priorities, other.priorities)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_priorities_of_a_policy_or_an_error(case, rows):
    policy = case.policy()
    columns = {key: column.numpy() for key, column in case.batch(rows=rows).items()}
    if type(policy).priorities is base.Policy.priorities:
        with pytest.raises(NotImplementedError):
            policy.priorities(columns)
        return
    priorities = policy.priorities(columns)
    assert (priorities.shape, priorities.dtype) == ((rows,), np.float32)
    assert (priorities >= 0).all()


def test_exploration_values_fit_the_policy(case):
    algorithm, policy, obs = case.algorithm(), case.policy(), case.obs(50)
    greedy = policy.greedy(obs)
    for env_steps in (0, 1000, 10**9):
        values = algorithm.exploration(env_steps)
        assert all(isinstance(name, str) and np.isfinite(value) for name, value in values.items())
        assert values == algorithm.exploration(env_steps)
        policy.explore(values)
        assert policy.act(obs)["action"].shape == (50, *case.spec.action.column.shape)
        assert np.array_equal(policy.greedy(obs), greedy)


def test_random_covers_the_action_space(case):
    action = case.policy().random(case.obs(2000))["action"]
    if case.spec.action.kind == "box":
        assert action.min() < -0.95
        assert action.max() > 0.95
        assert np.abs(action.mean(0)).max() < 0.1
    else:
        for one, num in zip(action.reshape(2000, -1).T, case.spec.action.choices, strict=True):
            assert np.bincount(one, minlength=num).min() > 350


def test_images_are_scaled(case):
    """uint8 observations, as replay holds them, count as values in [0, 1]."""
    batch, images = case.batch(), np.random.default_rng(1).integers(256, size=(2, 16, 3, 2)).astype(np.uint8)
    scaled, params = images.astype(np.float32) * np.float32(1 / 255), []
    for obs, next_obs in (images, scaled):
        algorithm = case.algorithm()
        algorithm.learn(batch | {"obs": torch.from_numpy(obs), "next_obs": torch.from_numpy(next_obs)}, Counts())
        params.append(algorithm.policy_params())
    np.testing.assert_array_equal(*params)
    np.testing.assert_array_equal(case.policy().greedy(images[0]), case.policy().greedy(scaled[0]))
    with np.testing.assert_raises(AssertionError):
        np.testing.assert_array_equal(params[0], case.algorithm().policy_params())


RAW, OBS, REWARD, BOTH = None, Layout({"": (3, 2)}, False), Layout({}, True), Layout({"": (3, 2)}, True)


def make_trainer(case, seed, layout, skips=False, optimizer="adam"):
    normalizer = None if layout is None else BatchNormalizer(layout)
    build = lambda context: case.algorithm(seed, context)  # noqa: E731
    return Trainer(build, Context(torch.device("cpu"), skips=skips, optimizer=OptimizerConfig(optimizer)), normalizer)


def train(case, trainer, layout, first, last):
    """A train call per seed, each with newer moments of one of two shards and now and then a version."""
    for seed in range(first, last):
        columns = {key: column.numpy()[None] for key, column in case.batch(seed).items()}
        moments = None
        if layout is not None:
            moments = RunningMoments.of(np.random.default_rng(seed).standard_normal((9 + seed, layout.size)))
        version, shard = seed // 2, seed % 2
        trainer.train(BatchTrainingData(0, 1, 16, 99, version=version, shard=shard, moments=moments), columns)


@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [
        pytest.param(layout, optimizer, id=label, marks=() if label == "both" else pytest.mark.exhaustive)
        for layout, optimizer, label in (
            *((RAW, "adam", "raw"), (OBS, "adam", "obs"), (REWARD, "adam", "reward"), (BOTH, "adam", "both")),
            *((RAW, "rmsprop", "rmsprop"), (RAW, "sgd", "sgd")),
        )
    ],
)
def test_a_trainer_goes_on_exactly_from_a_file(case, layout, optimizer, tmp_path):
    trainer, other = (make_trainer(case, seed, layout, optimizer=optimizer) for seed in (0, 9))
    if layout is not None:
        trainer.normalizer.before = RunningMoments.of(np.random.default_rng(3).standard_normal((7, layout.size)))
    train(case, trainer, layout, 0, 4)
    random = torch.get_rng_state()
    sums = {"x.safetensors": write_arrays(tmp_path / "x.safetensors", trainer.state())}
    torch.rand(1)
    other.load_state(read_arrays(tmp_path, "x.safetensors", {"sha256": sums}))
    assert torch.equal(torch.get_rng_state(), random)
    (params_header, params), (same_header, same_params) = trainer.publish(3, 7), other.publish(3, 7)
    assert (params_header, params.tobytes()) == (same_header, same_params.tobytes())
    for one in (trainer, other):
        train(case, one, layout, 4, 9)
    ours, theirs = trainer.state(), other.state()
    assert list(ours) == list(theirs)
    for key, array in ours.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            theirs[key].dtype,
            theirs[key].shape,
            theirs[key].tobytes(),
        )


def test_a_trainer_names_what_does_not_fit(case):
    layout = Layout({"": (3, 2)}, True)
    trainer = make_trainer(case, 0, layout)
    train(case, trainer, layout, 0, 2)
    state, before = make_trainer(case, 1, layout).state(), trainer.state()  # the second trainer seeds torch
    array = next(key for key in state if key.startswith("algorithm.optimizer."))
    bad = {**state, array: np.zeros((1, 1), np.float32), "algorithm.spare": np.zeros(2)}
    del bad["normalizer.before"], bad["opt_steps"]
    with pytest.raises(ValueError, match="does not fit") as caught:
        trainer.load_state(bad)
    for text in (
        f"{array} is float32[1, 1], needed is float32",
        "algorithm.spare is float64[2], needed is nothing",
        "normalizer.before is missing, needed is float64[15]",
        "opt_steps is missing",
    ):
        assert text in str(caught.value)
    after = trainer.state()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def read_by(case):
    """The column of numbers that every loss of the algorithm reads."""
    return "obs" if case.config.name == "bc" else "reward"


def bad_columns(case, value):
    """Three batches; in the second, row 3 has this reward (BC: observation), and is from worker 2, environment 5."""
    batches = [case.batch(seed) for seed in range(3)]
    columns = {key: np.stack([batch[key].numpy() for batch in batches]) for key in batches[0]}
    columns[read_by(case)][1, 3] = value
    columns["source"] = np.tile(np.arange(16, dtype=np.int32), (3, 1))
    columns["source"][1, 3] = 2 * 2**16 + 5
    return columns


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.inf, "; first bad value: {} from worker 2 env 5"),
        (np.nan, "; first bad value: {} from worker 2 env 5"),
        (1e38, r"; the batch was finite; its largest value: {} 1e\+38 from worker 2 env 5"),
    ],
)
def test_divergence_names_the_value_and_keeps_the_batch(case, value, says):
    trainer, columns = make_trainer(case, 0, None), bad_columns(case, value)
    is_huber = getattr(case.config, "loss", None) == "huber" or case.config.name == "mrq"
    is_bounded = hasattr(case.config, "atoms") or hasattr(case.config, "support")
    if value == 1e38 and (is_huber or is_bounded or case.config.name == "bc"):
        pytest.skip("learns from a value of any size")
    says = says.format(read_by(case))
    with pytest.raises(Diverged, match=f"^training diverged at update 2: .* loss is (NaN|infinite){says}$") as caught:
        trainer.train(BatchTrainingData(0, 3, 16, 99), columns)
    assert caught.value.is_data
    assert caught.value.batch.keys() == columns.keys()
    for key, column in caught.value.batch.items():
        np.testing.assert_array_equal(column, columns[key][1])


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_update_that_is_not_finite_can_be_skipped(case, value):
    plain, skipping, clean = (make_trainer(case, 0, None, skips) for skips in (False, True, True))
    columns = bad_columns(case, value)
    for trainer in (plain, skipping):
        report, _ = trainer.train(BatchTrainingData(0, 1, 16, 99), {key: column[:1] for key, column in columns.items()})
        assert (report.num_updates, report.skipped) == (trainer.opt_steps, 0)
    one, before = report.num_updates, skipping.state()
    assert {key: array.tolist() for key, array in before.items()} == {
        key: array.tolist() for key, array in plain.state().items()
    }
    report, _ = skipping.train(BatchTrainingData(0, 1, 16, 99), {key: column[1:2] for key, column in columns.items()})
    assert ((report.num_updates, report.skipped, report.metrics), skipping.opt_steps) == ((0, one, {}), one)
    changed = {key for key, array in skipping.state().items() if not np.array_equal(array, before[key])}
    drawn = {f"algorithm.generator.{name}" for name in ("noise", "fractions", "shuffle")}
    assert changed <= drawn  # what was drawn for it is gone
    report, _ = clean.train(BatchTrainingData(0, 3, 16, 99), columns)
    assert (report.num_updates, report.skipped) == (2 * one, one)
    assert report.metrics
    assert np.isfinite(list(report.metrics.values())).all()


def test_load_policy_is_the_inverse_of_policy_params(case):
    saved, algorithm = case.algorithm(), case.algorithm(seed=9)
    for i in range(3):
        saved.learn(case.batch(i), Counts(i))
    params = saved.policy_params()
    params.flags.writeable = False
    fresh = algorithm.state()
    algorithm.load_policy(params)
    assert algorithm.policy_params().tobytes() == params.tobytes() != case.algorithm(seed=9).policy_params().tobytes()
    changed = {key for key, tensor in algorithm.state().items() if not torch.equal(tensor, fresh[key])}
    assert changed <= {"params", *(f"target.{part}" for part in algorithm.params.targets)}  # the optimizer starts fresh
    algorithm.learn(case.batch(), Counts())  # and has not written into what was given
    for wrong in (params[:-1], np.append(params, params[:1])):
        with pytest.raises(ValueError, match=rf"{wrong.size}.*{params.size}"):
            algorithm.load_policy(wrong)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_compiled_updates_equal_plain_ones(name, kind):
    case = Case(name, kind)
    algorithms = [case.algorithm(context=Context(torch.device("cpu"), compiles=compiles)) for compiles in (False, True)]
    for seed in range(3):
        plain, compiled = (algorithm.learn(case.batch(seed, rows=64), Counts(seed)) for algorithm in algorithms)
        for metric, value in plain.metrics.items():
            torch.testing.assert_close(compiled.metrics[metric], value, rtol=1e-4, atol=1e-5)
    plain, compiled = (algorithm.state() for algorithm in algorithms)
    for key, value in plain.items():
        torch.testing.assert_close(compiled[key], value, rtol=1e-4, atol=2e-5)
