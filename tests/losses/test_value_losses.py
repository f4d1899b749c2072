"""Value losses: gradients equal to autograd, and a policy without illegal actions."""

import pytest
import torch

from drl_cli.losses import value


@pytest.mark.parametrize("is_weighted", [False, True])
def test_ensemble_mse_gradient_equals_autograd(is_weighted):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(11, generator=generator, dtype=torch.float64) if is_weighted else None
    loss, d_q = value.ensemble_mse(q, torch.randn(11, generator=generator, dtype=torch.float64), weight)
    loss.backward()
    torch.testing.assert_close(d_q, q.grad)


def test_an_action_that_is_not_allowed_has_no_probability_and_no_entropy():
    probs, entropy = value.softmax_policy(torch.tensor([[0.0, -1e9, 0.0]]), 0.03)
    assert probs.tolist() == [[0.5, 0.0, 0.5]]
    assert entropy.item() == pytest.approx(0.693147)


def test_huber_and_its_slope_equal_autograd():
    error = torch.linspace(-4, 4, 31, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    expected.sum().backward()
    loss, slope = value.huber(error.detach())
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, error.grad)
