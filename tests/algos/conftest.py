import pytest
from graphs import quick_compose


@pytest.fixture(autouse=True)
def quick_configs(monkeypatch):
    monkeypatch.setattr("drl_cli.testing.case.compose", quick_compose)
