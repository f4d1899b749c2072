"""Two learners with 128 rows each, in processes of their own, go where one with the same 256 rows goes."""

import numpy as np
import pytest
import torch
from graphs import make_config
from peers import on_group, peers

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import load_algorithm
from drl_cli.optim.group import Context, ProcessGroup
from drl_cli.types import ActionSpec, Column, EnvSpec

ROWS, UPDATES = 256, 50
ACTIONS = {"sac": ActionSpec("box", 2, "Box(2,)"), "dqn": ActionSpec("discrete", 3, "Discrete(3)")}


def batches(name, is_weighted):
    """Columns `[50, 256, ...]`."""
    rng = np.random.default_rng(0)
    shape = (UPDATES, ROWS)
    action = rng.uniform(-1, 1, (*shape, 2)).astype(np.float32) if name == "sac" else rng.integers(3, size=shape)
    columns = {
        "obs": rng.standard_normal((*shape, 6), np.float32),
        "next_obs": rng.standard_normal((*shape, 6), np.float32),
        "action": action,
        "reward": rng.standard_normal(shape, np.float32),
        "discount": np.where(rng.random(shape) < 0.2, 0, 0.99).astype(np.float32),
    }
    return columns | ({"weight": rng.uniform(0.1, 1, shape).astype(np.float32)} if is_weighted else {})


def learn(group, name, is_weighted):
    """The state after 50 updates on this rank's share of the rows, and all priorities `[50, 256 / size]`."""
    config = make_config(f"algo={name}", "env=CartPole-v1", "network.hidden=[32,32]")
    spec = EnvSpec("x", Column((6,), "float32"), ACTIONS[name])
    context = Context(torch.device("cpu"), group)
    algorithm = load_algorithm(name).Algorithm(config.algo, config.network, spec, 1, context)
    share = {key: np.split(column, group.size, 1)[group.rank] for key, column in batches(name, is_weighted).items()}
    updates = [
        algorithm.learn({key: torch.from_numpy(column[i]) for key, column in share.items()}, Counts(i))
        for i in range(UPDATES)
    ]
    state = {key: tensor.numpy() for key, tensor in algorithm.state().items()}
    return state, np.stack([update.priorities.numpy() for update in updates])


class Unheard(ProcessGroup):
    """Takes its rows, but nobody's gradients."""

    def mean_(self, tensor):
        pass


@pytest.fixture(scope="module")
def pair():
    with peers(2) as ranks:
        yield ranks


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_two_equal_one(pair, name, is_weighted):
    one, priorities = learn(ProcessGroup(), name, is_weighted)
    calls = [rank.submit(on_group, learn, name, is_weighted) for rank in pair]
    (first, upper), (second, lower) = (call.result() for call in calls)
    assert first.keys() == one.keys()
    for key in one:
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)
        np.testing.assert_allclose(first[key], one[key], rtol=1e-4, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(np.concatenate([upper, lower], 1), priorities, rtol=1e-4, atol=1e-4)
    alone, _ = learn(Unheard(0, 2), name, is_weighted)
    assert max(np.abs(alone[key] - one[key]).max() for key in one if key != "generator.noise") > 1e-2


def skip_one(group, name):
    """States after two updates; in the second the rows of rank 1 are not finite, and it is left out."""
    config = make_config(f"algo={name}", "env=CartPole-v1", "network.hidden=[32,32]")
    spec = EnvSpec("x", Column((6,), "float32"), ACTIONS[name])
    context = Context(torch.device("cpu"), group, skips=True)
    algorithm = load_algorithm(name).Algorithm(config.algo, config.network, spec, 1, context)
    columns, states = batches(name, False), []
    if group.rank == 1:
        columns["reward"][1, 7] = np.inf
    updates = []
    for i in range(2):
        batch = {key: torch.from_numpy(column[i]) for key, column in columns.items()}
        updates.append(algorithm.learn(batch, Counts(i)))
        states.append({key: tensor.numpy() for key, tensor in algorithm.state().items() if key != "generator.noise"})
    return [(update.steps, update.skipped) for update in updates], states


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_what_is_not_finite_in_one_is_skipped_by_all(pair, name):
    for call in [rank.submit(on_group, skip_one, name) for rank in pair]:
        counts, (before, after) = call.result()
        assert counts == [(1, 0), (0, 1)]
        assert (before["optimizer.count"] == 1).all()
        for key in before:
            np.testing.assert_array_equal(before[key], after[key], err_msg=key)
