"""symlog, and distributions over symexp bins, against literal numbers."""

import math

import pytest
import torch

from drl_cli.losses.distributional import two_hot_error
from drl_cli.losses.symlog import bins_mean, symexp, symexp_bins, symlog


def test_symlog_and_its_inverse():
    x = torch.tensor([-1000.0, -1.0, 0.0, 0.5, 3.0])
    expected = [-math.log(1001), -math.log(2), 0.0, math.log(1.5), math.log(4)]
    torch.testing.assert_close(symlog(x), torch.tensor(expected))
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-4, atol=1e-6)


def test_bins_are_symmetric_and_increase():
    bins = symexp_bins(255)
    assert bins.shape == (255,)
    assert torch.equal(bins, -bins.flip(0))
    assert bins.diff().min() > 0
    assert bins[-1].item() == pytest.approx(math.expm1(20), rel=1e-4)
    assert bins[128].item() == pytest.approx(math.expm1(20 / 127), rel=1e-4)


def test_the_mean_of_equal_probabilities_is_exactly_zero():
    probs = torch.full((3, 255), 1 / 255)
    assert torch.equal(bins_mean(probs, symexp_bins(255)), torch.zeros(3))


@pytest.mark.parametrize("value", [-300.0, -0.2, 0.0, 1.0, 77.0])
def test_the_mean_of_a_two_hot_vector_is_its_number(value):
    bins = symexp_bins(41, most=8.0)
    upper = int((bins <= value).sum())
    share = (value - bins[upper - 1]) / (bins[upper] - bins[upper - 1])
    two_hot = torch.zeros(1, 41)
    two_hot[0, upper - 1 : upper + 1] = torch.stack([1 - share, share])
    assert bins_mean(two_hot, bins).item() == pytest.approx(value, rel=1e-4, abs=1e-5)
    log_probs = torch.linspace(-2, 1, 41).log_softmax(0)
    error = two_hot_error(log_probs.unsqueeze(0), torch.tensor([value]), bins)
    torch.testing.assert_close(error, -(two_hot * log_probs).sum(1))
