"""Value targets and losses: numbers worked out by hand."""

import pytest
import torch

from drl_cli.losses.value import (
    ensemble_mse,
    half_square,
    huber,
    scaled_log_policy,
    softmax_policy,
)


def test_weighted_ensemble_mse_literals():
    # errors [[1, 1], [3, -1]], weights 1/2 and 1: (1/2 + 1 + 9/2 + 1) / 2 rows, and 2 w e / 2
    q, target = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0.0, 1.0])
    loss, d_q = ensemble_mse(q, target, torch.tensor([0.5, 1.0]))
    assert loss.item() == 3.5
    assert d_q.tolist() == [[0.5, 1.0], [1.5, -1.0]]
    ones = ensemble_mse(q, target, torch.ones(2))
    assert all(torch.equal(*pair) for pair in zip(ones, ensemble_mse(q, target), strict=True))


@pytest.mark.parametrize("is_weighted", [False, True])
def test_ensemble_mse_gradient_equals_autograd(is_weighted):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(11, generator=generator, dtype=torch.float64) if is_weighted else None
    loss, d_q = ensemble_mse(q, torch.randn(11, generator=generator, dtype=torch.float64), weight)
    loss.backward()
    torch.testing.assert_close(d_q, q.grad)


def test_softmax_policy_literals():
    # exp(1 / 0.5) : exp(0) = e^2 : 1
    probs, entropy = softmax_policy(torch.tensor([[1.0, 0.0], [3.0, 3.0]]), 0.5)
    assert probs[0].tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)
    assert entropy.tolist() == pytest.approx([0.365334, 0.693147], abs=2e-6)
    q = torch.tensor([[1.0, -2.0, 0.3]])
    probs, entropy = softmax_policy(q, 0.2)
    assert float((probs * q).sum() + 0.2 * entropy) == pytest.approx(float(0.2 * (q / 0.2).logsumexp(-1)), abs=1e-6)


def test_an_action_that_is_not_allowed_has_no_probability_and_no_entropy():
    probs, entropy = softmax_policy(torch.tensor([[0.0, -1e9, 0.0]]), 0.03)
    assert probs.tolist() == [[0.5, 0.0, 0.5]]
    assert entropy.item() == pytest.approx(0.693147)


def test_scaled_log_policy_literals():
    # 0.5 * log(0.119203) = -1.063464, 0.5 * log(0.880797) = -0.063464
    q, action = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 0, 1])
    assert scaled_log_policy(q, action, 0.5, -9.0).tolist() == pytest.approx(
        [-1.063464, -0.063464, -1.063464], abs=1e-6
    )
    assert scaled_log_policy(q, action, 0.5, -0.5).tolist() == pytest.approx([-0.5, -0.063464, -0.5], abs=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(huber, torch.nn.functional.huber_loss), (half_square, torch.nn.functional.mse_loss)],
    ids=["huber", "half_square"],
)
def test_loss_and_slope_equal_autograd(ours, theirs):
    error = torch.linspace(-4, 4, 31, dtype=torch.float64, requires_grad=True)
    expected = theirs(error, torch.zeros_like(error), reduction="none") * (0.5 if ours is half_square else 1.0)
    expected.sum().backward()
    loss, slope = ours(error.detach())
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, error.grad)
