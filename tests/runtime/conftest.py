"""Fixtures for tests of the runtime."""

import pytest
from clocks import Clock


@pytest.fixture
def clock(monkeypatch):
    """A clock at second 100 that all modules of the runtime read. Only the test moves it."""
    return Clock().install(monkeypatch)
