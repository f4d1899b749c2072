"""Fixtures for tests of the runtime."""

import sys
from pathlib import Path

import pytest
from clocks import Clock

import drl_cli.algos.value


@pytest.fixture
def clock(monkeypatch):
    """A clock at second 100 that all modules of the runtime read. Only the test moves it."""
    return Clock().install(monkeypatch)


@pytest.fixture
def support_algos(monkeypatch):
    """The algorithms of tests/support/algos are found as if they were built in."""
    folder = Path(__file__).parents[1] / "support" / "algos"
    monkeypatch.setattr(drl_cli.algos.value, "__path__", [*drl_cli.algos.value.__path__, str(folder)])
    yield
    for name in ("parts", "recall"):
        sys.modules.pop(f"drl_cli.algos.value.{name}", None)
