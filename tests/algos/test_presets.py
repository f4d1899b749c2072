from types import SimpleNamespace

import numpy as np
import pytest
import torch
from graphs import make_config

from drl_cli.algos import rollout
from drl_cli.algos.base import Algorithm
from drl_cli.algos.lookup import algorithms
from drl_cli.preflight import algorithm as algorithm_checks
from drl_cli.preflight.algorithm import memory_problems
from drl_cli.settings.conf import options
from drl_cli.testing import Case, check_algorithm
from drl_cli.testing.contract import check_burn_in, check_padding
from drl_cli.testing.learning import learned
from drl_cli.types import PreviousStep

FAST = ("algo.gamma=0.9", "algo.lr=3e-3", "algo.target_period=20")
SMALL = ("network.hidden=[16,16]", "network.memory_size=6", "replay.seq_len=5", "replay.burn_in=3", "replay.overlap=2")
WITHOUT_MEMORY = ("apex", "munchausen_dqn", "munchausen_iqn", "rainbow", "rainbow_iqn", "sqn")
"""Presets of DQN, C51 and IQN. The tests of these keep the contract with all options."""


def test_none_is_forgotten_here():
    dqn = {"apex", "munchausen_dqn", "munchausen_iqn", "r2d2", "rainbow", "rainbow_iqn", "sqn"}
    presets = dqn | {"a2c", "appo", "dr_q", "droq", "reinforce", "rlpd", "wsrl"}
    assert set(options("algo")) - set(algorithms()) == presets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(pytest.param(name, SMALL[:1], marks=pytest.mark.exhaustive) for name in WITHOUT_MEMORY),
        ("r2d2", SMALL),
        pytest.param(
            "sac_discrete", (*SMALL, "replay=sequences", "network=lstm", "algo.n_step=3"), marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "iqn",
            (*SMALL, "replay=sequences", "network=lstm", "algo.n_step=3", "algo.rescale=1e-3"),
            marks=pytest.mark.exhaustive,
        ),
        ("c51", (*SMALL, "replay=sequences", "network=gru", "algo.n_step=3", "algo.rescale=1e-3", "algo.noisy=true")),
        ("sac", (*SMALL, "replay=sequences", "network=gru", "algo.n_step=2")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_contract(name, options):
    check_algorithm(name, *options)


def padding_is_learned_from(monkeypatch):
    flat_steps = rollout.flat_steps
    whole = lambda batch, burn_in: flat_steps({**batch, "valid": torch.ones_like(batch["valid"])}, burn_in)  # noqa: E731
    monkeypatch.setattr(rollout, "flat_steps", whole)


def windows_begin_in_the_burn_in(monkeypatch):
    windows = rollout.n_step_windows
    shifted = lambda reward, *rest: windows(reward.roll(1, 1), *rest)  # noqa: E731
    monkeypatch.setattr(rollout, "n_step_windows", shifted)


@pytest.mark.parametrize(
    ("broken", "check", "says"),
    [
        (padding_is_learned_from, check_padding, "padding of sequences changes"),
        (windows_begin_in_the_burn_in, check_burn_in, "the burn-in changes"),
    ],
    ids=["padding", "burn-in"],
)
def test_the_contract_finds_what_a_broken_copy_learns_from(monkeypatch, broken, check, says):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=says):
        check(Case("r2d2", *SMALL))


def test_only_learners_that_make_windows_have_n_steps_in_sequences(monkeypatch):
    config = make_config("env=CartPole-v1", "algo=r2d2")
    assert list(memory_problems(config)) == []
    monkeypatch.setattr(
        algorithm_checks, "load_algorithm", lambda name: SimpleNamespace(Algorithm=Algorithm, TABLES=("sequences",))
    )
    (problem,) = memory_problems(config)
    assert problem.startswith("algo.n_step=5")


@pytest.mark.slow
def test_r2d2_remembers_and_its_twin_without_a_memory_does_not():
    """A cue four steps old, which nothing but the memory knows; half of the cues are guessed without."""
    assert recalled("network=lstm") == [0, 1]
    assert recalled("network=auto") != [0, 1]


def recalled(*options):
    """What the learned policy chooses at the end of Cue's two episodes."""
    cue = ("env=drl_cli.envs.probes:Cue-v0", "+env.kwargs.delay=4")
    small = (
        *("network.memory_size=16", "network.hidden=[16]", "replay.seq_len=4", "replay.burn_in=2"),
        "replay.overlap=2",
    )
    case = Case("r2d2", *cue, *options, *small, *FAST)
    policy, last = learned(case, 120, batch_size=32), PreviousStep.none(case.spec, 2)
    for step in range(5):
        obs = np.zeros((2, 3), np.float32)
        if step == 0:
            obs[[0, 1], [0, 1]] = 1
        obs[:, 2] = step == 4
        action = policy.greedy(obs, last)
        last = PreviousStep.of(action, np.zeros(2, np.float32), [])
    return action.tolist()
