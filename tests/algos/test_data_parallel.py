"""Two trainers with half of the rows each equal one trainer with all rows."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from choices import some
from graphs import make_config
from peers import together

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import load_algorithm
from drl_cli.api import Context
from drl_cli.optim.group import ProcessGroup
from drl_cli.types import ActionSpec, Column, EnvSpec, flat_columns, gathered, random_obs

BOX, DISCRETE = ActionSpec("box", 2, "Box(2,)"), ActionSpec("discrete", 3, "Discrete(3)")
VECTOR, IMAGE = Column((6,), "float32"), Column((12, 12, 2), "uint8")
TREE = {"camera": IMAGE, "joints": VECTOR}
BURN_IN, STEPS = 2, 5


@dataclass(frozen=True)
class Case:
    """An algorithm, its observations and actions, and what it learns from."""

    algo: str
    obs: object
    action: ActionSpec
    rows: int = 32
    overrides: tuple = ()
    sequences: bool = False
    is_weighted: bool = False
    updates: int = 8

    def batch(self, seed):
        """Columns `[rows, ...]`; sequences `[rows, BURN_IN + STEPS, ...]` have padding in front and behind."""
        rng, length = np.random.default_rng(seed), BURN_IN + STEPS if self.sequences else 1
        num = self.rows * length
        is_box = self.action is BOX
        action = rng.uniform(-1, 1, (num, 2)).astype(np.float32) if is_box else rng.integers(3, size=num)
        columns = {
            **flat_columns("obs", random_obs(self.obs, num, rng)),
            **flat_columns("next_obs", random_obs(self.obs, num, rng)),
            "action": action,
            "reward": rng.standard_normal(num, np.float32),
            "discount": np.where(rng.random(num) < 0.2, 0, 0.99).astype(np.float32),
        }
        if self.algo == "ppo":
            columns["log_prob"] = rng.normal(-1.1, 0.1, num).astype(np.float32)
            columns["cut"] = rng.random(num) < 0.2
            columns["cut"][num // 2 - 1] = columns["cut"][-1] = True
        if self.sequences:
            columns = {name: column.reshape(self.rows, length, *column.shape[1:]) for name, column in columns.items()}
            first = rng.integers(BURN_IN + 1, size=self.rows)
            end = rng.integers(BURN_IN + 1, length + 1, size=self.rows)
            end[: self.rows // 2] = BURN_IN + 1  # the first trainer has fewer valid steps
            step = np.arange(length)
            columns["valid"] = (step >= first[:, None]) & (step < end[:, None])
            columns["state"] = rng.normal(0, 0.3, (self.rows, 2 * 6)).astype(np.float32)
        if self.sequences or self.is_weighted:
            columns["weight"] = rng.uniform(0.1, 1, self.rows).astype(np.float32)
        return columns

    def algorithm(self, group, skips=False):
        more = ("algo.minibatch_size=5", "algo.epochs=2") if self.algo == "ppo" else ()
        config = make_config(f"algo={self.algo}", "env=CartPole-v1", "network.hidden=[16,16]", *more, *self.overrides)
        burn_in = BURN_IN if self.sequences else 0
        context = Context(torch.device("cpu"), group, skips, optimizer=config.optimizer, burn_in=burn_in)
        spec = EnvSpec("x", self.obs, self.action)
        return load_algorithm(self.algo).Algorithm(config.algo, config.network, spec, 1, context)


CASES = {
    "sac": Case("sac", VECTOR, BOX, 256, updates=30),
    "dqn-weighted": Case("dqn", VECTOR, DISCRETE, 256, is_weighted=True, updates=30),
    "dqn-cnn": Case("dqn", IMAGE, DISCRETE),
    "sac-cnn": Case("sac", IMAGE, BOX),
    "dqn-lstm": Case("dqn", VECTOR, DISCRETE, 16, ("network=lstm", "network.memory_size=6"), True),
    "sac-lstm": Case("sac", VECTOR, BOX, 16, ("network=lstm", "network.memory_size=6"), True),
    "td3-lstm": Case("td3", VECTOR, BOX, 16, ("network=lstm", "network.memory_size=6"), True),
    "ddpg-dropout": Case("ddpg", VECTOR, BOX, overrides=("network.dropout=0.3",)),
    "mpo-dropout": Case("mpo", VECTOR, BOX, overrides=("network.dropout=0.3", "algo.samples=3")),
    "dqn-sequences": Case("dqn", TREE, DISCRETE, 16, (), True),
    "dqn-dropout": Case("dqn", VECTOR, DISCRETE, overrides=("network.dropout=0.3",)),
    "iqn-noisy": Case("iqn", VECTOR, DISCRETE, overrides=("algo.noisy=true", "algo.dueling=true")),
    "sac-sgd": Case("sac", VECTOR, BOX, overrides=("algo.lr=0.1", "optimizer=sgd", "optimizer.max_norm=0.5")),
    "td3_bc": Case("td3_bc", VECTOR, BOX),
    "rebrac": Case("rebrac", VECTOR, BOX),
    "fql": Case("fql", VECTOR, BOX, overrides=("network.dropout=0.3",)),
    "iql": Case("iql", VECTOR, BOX, 256, is_weighted=True),
    "cql-lstm": Case("cql", VECTOR, BOX, 16, ("network=lstm", "network.memory_size=6", "algo.samples=2"), True),
    "bc": Case("bc", VECTOR, BOX, overrides=("algo.components=2",)),
    "ppo": Case("ppo", VECTOR, DISCRETE),
    "ppo-box": Case("ppo", VECTOR, BOX),
    "ppo-cnn": Case("ppo", TREE, DISCRETE),
    "ppo-dropout": Case("ppo", VECTOR, DISCRETE, overrides=("network.dropout=0.3",)),
}
FAST = ("td3_bc", "sac", "dqn-weighted", "sac-lstm", "dqn-sequences", "sac-sgd", "ppo-cnn", "ppo-dropout")


def learn(group, name):
    """The state after some updates on this trainer's share of the rows, and all priorities."""
    case, priorities = CASES[name], []
    algorithm = case.algorithm(group)
    for i in range(case.updates):
        share = {key: np.split(column, group.size)[group.rank] for key, column in case.batch(i).items()}
        batch = gathered({key: torch.from_numpy(column) for key, column in share.items()})
        priorities.append(algorithm.learn(batch, Counts(i, i)).priorities)
    state = {key: tensor.numpy() for key, tensor in algorithm.state().items()}
    return state, None if priorities[0] is None else np.stack([one.numpy() for one in priorities])


class Unheard(ProcessGroup):
    """One of two trainers, which ignores the gradients of the other."""

    def mean_(self, tensor):
        pass


@pytest.mark.parametrize("name", some(CASES, *FAST))
def test_two_equal_one(name):
    one, priorities = learn(ProcessGroup(), name)
    (first, upper), (second, lower) = together(learn, name)
    assert first.keys() == one.keys()
    for key in one:
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)
        np.testing.assert_allclose(first[key], one[key], rtol=1e-3, atol=2e-5, err_msg=key)
    if priorities is not None:
        np.testing.assert_allclose(np.concatenate([upper, lower], 1), priorities, rtol=1e-3, atol=1e-4)
    alone, _ = learn(Unheard(0, 2), name)
    assert np.abs(alone["params"] - one["params"]).max() > 1e-3


def skip_one(group, name):
    """Updates and states of two updates; in the second, the rows of rank 1 are not finite."""
    case, states, updates = CASES[name], [], []
    algorithm = case.algorithm(group, skips=True)
    for i in range(2):
        columns = case.batch(i)
        if (group.rank, i) == (1, 1):
            columns["reward"][7] = np.inf
        updates.append(algorithm.learn({key: torch.from_numpy(column) for key, column in columns.items()}, Counts(i)))
        states.append({key: tensor.numpy() for key, tensor in algorithm.state().items() if key != "generator.noise"})
    return [(update.steps, update.skipped) for update in updates], states


@pytest.mark.parametrize("name", ["sac", "dqn-weighted"])
def test_an_update_that_is_not_finite_for_one_is_skipped_by_all(name):
    for counts, (before, after) in together(skip_one, name):
        assert counts == [(1, 0), (0, 1)]
        assert (before["optimizer.count"] == 1).all()
        for key in before:
            np.testing.assert_array_equal(before[key], after[key], err_msg=key)
