"""Configs of the tests of algorithms are composed without Hydra, which takes longer than many of these tests."""

import pytest
from graphs import make_config


@pytest.fixture(autouse=True)
def quick_configs(monkeypatch):
    monkeypatch.setattr("drl_cli.testing.case.compose", lambda words: make_config(*words))
