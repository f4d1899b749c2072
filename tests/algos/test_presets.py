from types import SimpleNamespace

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
