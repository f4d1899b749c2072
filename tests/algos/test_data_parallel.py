"""Two trainers with half of the rows each equal one trainer: options that check_algorithm does not try by itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from choices import some
from peers import together

from drl_cli.algos.base import Counts
from drl_cli.testing import Case
from drl_cli.testing.contract import check_trainers

PROBES = "env=drl_cli.envs.probes"
SMALL_IMAGE = ("+env.kwargs.size=36", "network.channels=0.25")
SEQUENCES = ("replay=sequences", "replay.seq_len=5", "replay.burn_in=2", "replay.overlap=2")
LSTM = (*SEQUENCES, "network=lstm", "network.memory_size=6")
DROPOUT = "network.dropout=0.3"
CASES = {
    "sac": ("sac",),
    "sac-sgd": ("sac", "optimizer=sgd", "optimizer.max_norm=0.5", "algo.lr=0.1"),
    "sac-cnn": ("sac", f"{PROBES}:PatchReach-v0", *SMALL_IMAGE),
    "sac-lstm": ("sac", *LSTM),
    "td3-lstm": ("td3", *LSTM),
    "ddpg-dropout": ("ddpg", DROPOUT),
    "mpo-dropout": ("mpo", DROPOUT, "algo.samples=3"),
    "dqn": ("dqn",),
    "dqn-cnn": ("dqn", f"{PROBES}:Patch-v0", *SMALL_IMAGE),
    "dqn-lstm": ("dqn", *LSTM),
    "dqn-sequences": ("dqn", f"{PROBES}:Both-v0", "network.channels=0.25", *SEQUENCES),
    "dqn-dropout": ("dqn", DROPOUT),
    "iqn-noisy": ("iqn", "algo.noisy=true", "algo.dueling=true"),
    "td3_bc": ("td3_bc",),
    "rebrac": ("rebrac",),
    "fql": ("fql", DROPOUT),
    "iql": ("iql",),
    "cql-lstm": ("cql", *LSTM, "algo.samples=2"),
    "bc": ("bc", "algo.components=2"),
    "ppo-box": ("ppo", "env=Pendulum-v1"),
    "ppo-cnn": ("ppo", f"{PROBES}:Patch-v0", *SMALL_IMAGE),
    "ppo-dropout": ("ppo", DROPOUT),
}
FAST = ("td3_bc", "sac", "sac-sgd", "sac-lstm", "dqn", "dqn-sequences", "ppo-dropout")


class Weighted(Case):
    """A case whose batches have importance weights."""

    def batch(self, seed=0, rows=16):
        weight = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) + 0.1
        return super().batch(seed, rows) | ({} if self.is_on_policy else {"weight": weight})


def case_of(name):
    algo, *words = CASES[name]
    few = ["algo.epochs=2", "algo.minibatch_size=5"] if algo == "ppo" else []
    return Weighted(algo, "network.hidden=[16,16]", *words, *few)


@pytest.mark.parametrize("name", some(CASES, *FAST))
def test_two_equal_one(name):
    check_trainers(case_of(name), updates=8)


def skip_one(group, case):
    """Updates and states of two updates; in the second, the rows of rank 1 are not finite."""
    states, updates = [], []
    algorithm = case.algorithm(0, case.context(group, skips=True))
    for i in range(2):
        batch = case.batch(i)
        if (group.rank, i) == (1, 1):
            batch["reward"][7] = np.inf
        updates.append(algorithm.learn(batch, Counts(i)))
        states.append({key: tensor.clone() for key, tensor in algorithm.state().items() if key != "generator.noise"})
    return [(update.steps, update.skipped) for update in updates], states


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_an_update_that_is_not_finite_for_one_is_skipped_by_all(name):
    for counts, (before, after) in together(skip_one, case_of(name)):
        assert counts == [(1, 0), (0, 1)]
        assert (before["optimizer.count"] == 1).all()
        assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


NORMED = pytest.mark.parametrize("name", ["td3_bc", "rebrac", "fql"])
"""Their actors' losses divide by a mean over all trainers."""


class Compiled(Weighted):
    """A case with trainer.compile=true for several trainers."""

    def context(self, group=None, **options):
        return replace(super().context(group, **options), compiles=group is not None)


@NORMED
def test_two_with_compile_equal_one(name):
    check_trainers(Compiled(name, "network.hidden=[16,16]"), updates=3)
