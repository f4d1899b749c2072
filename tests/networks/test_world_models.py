"""The range of returns."""

import pytest
import torch

from drl_cli.networks.world_models import ReturnRange


def test_the_range_of_returns_moves_slowly_and_is_at_least_1():
    returns = ReturnRange()
    assert returns.scale(torch.linspace(0, 1, 101)).item() == 1.0
    torch.testing.assert_close(returns.ends, torch.tensor([0.0005, 0.0095]))
    for _ in range(2000):
        scale = returns.scale(torch.cat([torch.linspace(0, 100, 101), torch.full((50,), torch.nan)]))
    assert scale.item() == pytest.approx(90.0, rel=1e-3)
