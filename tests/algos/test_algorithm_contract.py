"""What every built-in algorithm has to do, in addition to the public contract."""

import numpy as np
import pytest
import torch
from choices import some
from confs import algo_config
from learners import ACTIONS, CPU

from drl_cli.algos import base
from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.errors import Diverged
from drl_cli.networks.config import NetworkConfig
from drl_cli.replay.builders import RolloutBuilder
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.types import Column, EnvSpec, transition_schema

NETWORK = NetworkConfig((16, 16), "relu", "uniform")
ONLY_WINDOWS = ("dreamer", "tdmpc2")
"""The algorithms that do not learn from single transitions; their own tests have windows."""
CASES = [(name, kind) for name in algorithms() if name not in ONLY_WINDOWS for kind in load_algorithm(name).ACTIONS]
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
    trainer, columns = Trainer(lambda context: case.algorithm(context=context), CPU), bad_columns(case, value)
    is_huber = getattr(case.config, "loss", None) == "huber" or case.config.name == "mrq"
    is_bounded = hasattr(case.config, "atoms") or hasattr(case.config, "support")
    if value == 1e38 and (is_huber or is_bounded or case.config.name == "bc"):
        pytest.skip("learns from a value of any size")
    says = says.format(read_by(case))
    with pytest.raises(Diverged, match=f"^training diverged at update 2: .* loss is (NaN|infinite){says}$") as caught:
        trainer.train(BatchTrainingData(3), columns)
    assert caught.value.is_data
    assert caught.value.batch.keys() == columns.keys()
    for key, column in caught.value.batch.items():
        np.testing.assert_array_equal(column, columns[key][1])
