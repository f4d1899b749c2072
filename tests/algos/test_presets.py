"""Yamls that are options of an algorithm: each keeps the contract, learns a probe, and says what its paper says."""

import pytest

from drl_cli.algos.lookup import algorithms
from drl_cli.cli.conf import options
from drl_cli.testing import check_algorithm, check_learning
from drl_cli.testing.case import Case

PRESETS = sorted(set(options("algo")) - set(algorithms()))
FAST = ("algo.gamma=0.9", "algo.lr=3e-3", "algo.target_period=20", "algo.n_step=1")
MEANT = {"munchausen_dqn": {"name": "dqn", "double": False, "soft_temperature": 0.03, "munchausen": 0.9}}


@pytest.mark.parametrize("name", PRESETS)
def test_it_is_what_its_paper_says(name):
    config = Case(name).config
    assert {key: getattr(config.algo, key) for key in MEANT[name]} == MEANT[name]


@pytest.mark.parametrize("name", PRESETS)
def test_it_keeps_the_contract(name):
    check_algorithm(name, "network.hidden=[16,16]")


@pytest.mark.parametrize("name", PRESETS)
def test_it_learns(name):
    check_learning(name, *FAST, updates=250)
