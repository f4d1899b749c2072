"""Value targets and losses: numbers worked out by hand."""

import pytest
import torch

from drl_cli.losses.value import double_q_target, ensemble_mse, half_square, huber, q_target, soft_target


def test_soft_target_literals():
    # 1 + 0.9 (2 - 0.05), terminated: the reward alone, 0.5 + 0.729 (-1 - 0.2)
    target = soft_target(
        torch.tensor([1.0, -2.0, 0.5]),
        torch.tensor([0.9, 0.0, 0.729]),
        torch.tensor([[2.0, 5.0, -1.0], [3.0, 4.0, 1.0]]),
        torch.tensor([0.5, -1.0, 2.0]),
        torch.tensor([0.1]),
    )
    assert target.tolist() == pytest.approx([2.755, -2.0, -0.3748])


def test_ensemble_mse_literals():
    # errors [[1, 1], [3, -1]]: 12 / 2 rows, and 2 e / 2
    loss, d_q = ensemble_mse(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0.0, 1.0]))
    assert loss.item() == 6.0
    assert d_q.tolist() == [[1.0, 1.0], [3.0, -1.0]]


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


REWARD, DISCOUNT = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.9, 0.0, 0.729])
NEXT_Q = torch.tensor([[2.0, 5.0], [7.0, 4.0], [-3.0, -1.0]])


def test_q_target_literals():
    # 1 + 0.9 * 5; terminated: the reward alone; 0.5 - 0.729
    assert q_target(REWARD, DISCOUNT, NEXT_Q).tolist() == pytest.approx([5.5, -2.0, -0.229])


def test_double_q_target_literals():
    # The online network chooses 0, 1, 0: 1 + 0.9 * 2; the reward alone; 0.5 - 0.729 * 3
    next_online = torch.tensor([[0.2, 0.1], [0.0, 9.0], [4.0, 3.0]])
    target = double_q_target(REWARD, DISCOUNT, NEXT_Q, next_online)
    assert target.tolist() == pytest.approx([2.8, -2.0, -1.687])
    assert torch.equal(double_q_target(REWARD, DISCOUNT, NEXT_Q, NEXT_Q), q_target(REWARD, DISCOUNT, NEXT_Q))


def test_half_square_literals():
    loss, slope = half_square(torch.tensor([3.0, -0.5, 0.0]))
    assert loss.tolist() == [4.5, 0.125, 0.0]
    assert slope.tolist() == [3.0, -0.5, 0.0]


def test_huber_literals():
    loss, slope = huber(torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.2, 1.0, 10.0]))
    assert loss.tolist() == pytest.approx([2.5, 0.5, 0.125, 0.0, 0.02, 0.5, 9.5])
    assert slope.tolist() == pytest.approx([-1.0, -1.0, -0.5, 0.0, 0.2, 1.0, 1.0])


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
