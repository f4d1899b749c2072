"""Whether draws have the probabilities that they should."""

import numpy as np


def check_frequencies(slots, expected):
    """Chi-squared of independent draws: within five standard deviations of its mean, so neither far nor too even."""
    counts = np.bincount(slots.ravel(), minlength=len(expected))
    assert len(counts) == len(expected)
    wanted = expected * slots.size
    assert counts[wanted < 1e-3].sum() <= 1
    common = wanted > 5
    freedom = common.sum() - 1
    chi_squared = ((counts - wanted)[common] ** 2 / wanted[common]).sum()
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)
