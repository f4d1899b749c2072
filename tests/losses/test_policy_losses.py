"""Policy losses: values by torch.distributions or worked out by hand, every gradient against autograd."""

import math

import numpy as np
import pytest
import torch

from drl_cli.losses import policy as losses
from drl_cli.losses.distributions import Categorical
from drl_cli.losses.policy import FORBIDDEN


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("u", "correction"), [(8.0, -14.613706), (-8.0, -14.613706), (40.0, -78.613706)])
def test_log_prob_is_stable_in_float32(u, correction):
    zero = torch.zeros(1, 1)
    _, log_prob = losses.tanh_gaussian(zero + u, zero, zero)
    assert log_prob.dtype == torch.float32
    assert -0.9189385 - log_prob.item() == pytest.approx(correction, abs=1e-4)  # log(1 - tanh^2 + 1e-6) gives -13.43


def test_tanh_gaussian_backward_equals_autograd():
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise, weight = (torch.randn(7, 3, generator=generator, dtype=torch.float64) for _ in range(4))
    d_log_prob = torch.randn(7, generator=generator, dtype=torch.float64)
    mean[0], mean[1] = 6.0, -6.0
    mean.requires_grad_(), log_std.requires_grad_()
    action, log_prob = losses.tanh_gaussian(mean, log_std, noise)
    ((action * weight).sum() + (log_prob * d_log_prob).sum()).backward()
    d_mean, d_log_std = losses.tanh_gaussian_backward(action.detach(), log_std.detach(), noise, weight, d_log_prob)
    torch.testing.assert_close(d_mean, mean.grad, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(d_log_std, log_std.grad, rtol=1e-8, atol=1e-9)


def test_a_mask_leaves_what_it_allows():
    values, mask = doubles([1, -2, 3], [0, 5, 6]), torch.tensor([[True, False, True], [False, True, True]])
    assert losses.permitted(values, None) is values
    assert losses.permitted(values, mask).tolist() == [[1, FORBIDDEN, 3], [FORBIDDEN, 5, 6]]
    array = losses.permitted(values.float().numpy(), mask.numpy())
    assert (array.dtype, array.tolist()) == (np.float32, [[1, FORBIDDEN, 3], [FORBIDDEN, 5, 6]])
    masked = Categorical(values, mask)
    log_prob, entropy = masked.log_prob(torch.tensor([0, 0])), masked.entropy()
    assert log_prob.tolist() == pytest.approx([-math.log(1 + math.e**2), FORBIDDEN - 6 - math.log(1 + 1 / math.e)])
    assert torch.isfinite(entropy).all()  # none of it is 0 * inf
    assert FORBIDDEN < -1e6  # no value of a network is as small


def test_clipped_surrogate_literals():
    # min(r A, clip(r) A) of each: 1.1 * 2; 1.2 * 2, clipped; 1.5 * -2; 0.5 * 2; 0.8 * -2, clipped; 0.9 * -2
    ratio, advantage = doubles(1.1, 1.5, 1.5, 0.5, 0.5, 0.9), doubles(2, 2, -2, 2, -2, -2)
    loss, d_ratio = losses.clipped_surrogate(ratio, advantage, 0.2)
    assert loss.item() == pytest.approx(-(2.2 + 2.4 - 3.0 + 1.0 - 1.6 - 1.8) / 6)
    assert d_ratio.tolist() == pytest.approx([-2 / 6, 0, 2 / 6, -2 / 6, 0, 2 / 6])
