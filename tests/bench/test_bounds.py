"""What two sides could do together."""

import pytest

from drl_cli.bench.figures import Rate
from drl_cli.bench.tune import balanced_ratio, bound

FREE = 1e12
"""Things per second of processor time of what only waits."""


@pytest.mark.parametrize(
    ("workers", "cores", "worker", "trainer", "expected"),
    [
        (1, 4, Rate(1000, 1000), Rate(3000, 3000), (1000, "workers")),
        (3, 4, Rate(1000, 1000), Rate(2000, 2000), (2000, "trainer")),
        (8, 4, Rate(1000, 1000), Rate(6000, 6000), (4 / (1 / 1000 + 1 / 6000), "processors")),
        (8, 1, Rate(1000, FREE), Rate(9000, FREE), (8000, "workers")),  # sleeping environments need no processor
    ],
)
def test_side_by_side_the_least_of_three_limits_holds(workers, cores, worker, trainer, expected):
    rate, whose = bound("async", workers, cores, worker, trainer)
    assert (rate, whose) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_in_turn_the_times_of_both_sides_add_up(mode):
    assert bound(mode, 1, 2, Rate(1000, 1000), Rate(3000, 3000)) == (pytest.approx(750), "workers")
    assert bound(mode, 4, 2, Rate(1000, 1000), Rate(500, 500)) == (pytest.approx(400), "trainer")  # 2000 and 500


@pytest.mark.parametrize(
    ("ratio", "worker_wait", "trainer_wait", "balanced"),
    [(0.25, 0.5, 0.0, 0.12), (0.125, 0.0, 0.75, 0.5), (0.2, 0.0, 0.0, 0.2), (0.2, 0.5, 0.5, 0.2)],
)
def test_the_ratio_at_which_neither_would_wait(ratio, worker_wait, trainer_wait, balanced):
    assert balanced_ratio(ratio, worker_wait, trainer_wait) == balanced
