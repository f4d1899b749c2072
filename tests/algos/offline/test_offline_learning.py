"""Offline algorithms find better actions than those of the data, and BC does not.

In the probe Reach, the best action equals the observation; the reward is minus the squared error. The data's actions
are biased: normal around half of the observation plus 0.2. In Choose, the data's choices are random.
"""

import numpy as np
import pytest
import torch

from drl_cli.algos.base import Counts
from drl_cli.testing import Case

ROWS = 2000
FAST = ("network.hidden=[32,32]", "algo.lr=3e-3")
SLOW = ("algo.tau=0.05",)
BOX = {
    "awac": ("algo.temperature=0.03", *SLOW),
    "cal_ql": ("algo.actor_lr=3e-3", "algo.cql_alpha=0.1", "algo.samples=4", "algo.initial_alpha=0.01", *SLOW),
    "cql": ("algo.actor_lr=3e-3", "algo.cql_alpha=0.1", "algo.samples=4", "algo.initial_alpha=0.01", *SLOW),
    "fql": ("algo.alpha=0.1", *SLOW),
    "iql": ("algo.expectile=0.9", "algo.beta=30", *SLOW),
    "rebrac": ("algo.lr=3e-3", *SLOW),
    "td3_bc": ("algo.alpha=20", *SLOW),
}
QUICK = ("awac", "cql", "fql", "iql", "td3_bc")


def reach():
    rng = np.random.default_rng(0)
    obs = rng.uniform(-0.8, 0.8, (ROWS, 1)).astype(np.float32)
    action = (0.5 * obs + 0.2 + 0.3 * rng.standard_normal((ROWS, 1))).clip(-1, 1).astype(np.float32)
    reward = -((action - obs) ** 2).sum(1)
    return obs, action, reward


def choose():
    rng = np.random.default_rng(0)
    obs, action = np.eye(3, dtype=np.float32)[rng.integers(3, size=ROWS)], rng.integers(3, size=ROWS)
    return obs, action, (obs.argmax(1) == action).astype(np.float32)


def learned(name, rows, updates, *words):
    """Return the policy after these updates from the rows, which all end an episode."""
    case = Case(name, *FAST, *words)
    algorithm, rng = case.algorithm(), np.random.default_rng(1)
    obs, action, reward = (torch.from_numpy(column) for column in rows)
    for i in range(updates):
        index = torch.from_numpy(rng.integers(ROWS, size=64))
        ended = torch.ones(64, dtype=torch.bool)
        batch = {"obs": obs[index], "next_obs": obs[index], "action": action[index], "reward": reward[index]}
        batch |= {"discount": torch.zeros(64), "terminated": ended, "truncated": ~ended}
        batch |= {"mc_return": reward[index], "next_action": action[index]}
        algorithm.learn(batch, Counts(i))
    return case.policy(0, algorithm)


def error(policy, best):
    goals = np.linspace(-0.7, 0.7, 29, dtype=np.float32)[:, None]
    return float(np.square(policy.greedy(goals) - best(goals)).mean())


def test_bc_imitates_the_mean_of_the_data():
    policy = learned("bc", reach(), 300)
    assert error(policy, lambda obs: 0.5 * obs + 0.2) < 0.005
    assert error(policy, lambda obs: obs) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in BOX]
)
def test_the_others_find_better_actions(name):
    """The data's mean action has the error 0.08."""
    assert error(learned(name, reach(), 500, *BOX[name]), lambda obs: obs) < 0.03


def test_cql_finds_the_best_choices_and_bc_does_not():
    chosen = learned("cql_discrete", choose(), 300, "algo.target_period=20").greedy(np.eye(3, dtype=np.float32))
    assert chosen.tolist() == [0, 1, 2]
    box = "env=drl_cli.envs.probes:Choose-v0"
    drawn = learned("bc", choose(), 200, box).act(np.eye(3, dtype=np.float32).repeat(1000, 0))["action"]
    shares = [np.bincount(part, minlength=3) / 1000 for part in drawn.reshape(3, 1000)]
    np.testing.assert_allclose(shares, 1 / 3, atol=0.1)
