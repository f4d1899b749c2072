"""A test of the frequencies of draws."""

import numpy as np


def check_frequencies(slots, expected):
    """Check that chi-squared of independent draws is within five standard deviations of its mean."""
    counts = np.bincount(slots.ravel(), minlength=len(expected))
    assert len(counts) == len(expected)
    wanted = expected * slots.size
    assert counts[wanted < 1e-3].sum() <= 1
    common = wanted > 5
    freedom = common.sum() - 1
    chi_squared = ((counts - wanted)[common] ** 2 / wanted[common]).sum()
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)
