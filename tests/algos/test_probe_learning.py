"""Algorithms learn the probes in a plain loop of environments, replay and algorithm."""

import pytest
import torch

from drl_cli.testing import Case, check_learning
from drl_cli.testing.learning import learned

FAST = ("algo.gamma=0.9", "algo.lr=3e-3")
SAC = (*FAST, "algo.alpha_lr=3e-3", "algo.tau=0.05", "algo.initial_alpha=0.1")
DQN = (*FAST, "algo.target_period=20", "algo.epsilon_end=0.1", "algo.epsilon_steps=800")
PPO = (
    *("algo.gamma=0.9", "algo.lr=1e-2", "algo.gae_lambda=0.9", "algo.epochs=4", "algo.minibatch_size=64"),
    *("algo.entropy_coef=0", "algo.value_coef=0.5"),
)


def learn(name, probe, updates, *overrides):
    """Return the algorithm after `updates` updates in this probe."""
    case = Case(name, f"env=drl_cli.envs.probes:{probe}-v0", "network.hidden=[32,32]", *overrides)
    algorithm = case.algorithm()
    case.algorithm = lambda *args: algorithm
    learned(case, updates)
    return algorithm


@pytest.mark.parametrize(
    ("name", "options", "updates"),
    [
        ("sac", SAC, 600),
        ("dqn", (*DQN, "algo.double=true"), 200),
        pytest.param("dqn", (*DQN, "algo.double=false"), 200, marks=pytest.mark.exhaustive),
        ("ppo", PPO, 60),
        ("ppo", (*PPO, "env=drl_cli.envs.probes:Choose-v0"), 20),
    ],
    ids=["sac", "double dqn", "dqn", "ppo box", "ppo discrete"],
)
def test_the_best_actions_are_learned(name, options, updates):
    check_learning(name, *options, updates=updates)


@pytest.mark.parametrize("n_step", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_forever(n_step):
    """1 / (1 - 0.9) = 10 if and only if truncation bootstraps; else, with episodes of 5 steps, below 3.6."""
    fixed = ("algo.initial_alpha=1e-3", "algo.alpha_lr=1e-9", "algo.target_entropy=-1")
    algorithm = learn("sac", "Forever", 500, *SAC, *fixed, f"algo.n_step={n_step}", "env.max_episode_steps=5")
    actions = torch.linspace(-0.9, 0.9, 7)[:, None]
    q = algorithm.critic(torch.zeros(7, 1), actions)
    assert q.min() > 9.0
    assert q.max() < 11.0


@pytest.mark.parametrize("gae_lambda", [0.9, *(pytest.param(end, marks=pytest.mark.exhaustive) for end in (0.0, 1.0))])
def test_ppo_forever(gae_lambda):
    """As above: the value is 10 if and only if truncated episodes and the ends of rollouts bootstrap."""
    options = (*PPO, f"algo.gae_lambda={gae_lambda}", "env.max_episode_steps=5")
    algorithm = learn("ppo", "Forever", 80, *options)
    value = algorithm.critic(torch.zeros(1, 1))
    assert value.item() == pytest.approx(10.0, abs=0.5)
