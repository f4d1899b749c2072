"""Probes: integers that note on a path what Python asks of them."""

import math

import pytest

from drl_cli.chains.counts import Path, Probe


def probes(*values):
    path = Path()
    return path, [Probe.of(path, i, value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("ask", "holds", "fails"),
    [
        *[(lambda n: n % 2 == 0, (8,), (7,)), (lambda n: (n + 1) % 3 == 1, (9,), (10,))],
        *[(lambda n: n > 5, (7,), (5,)), (lambda n: n >= 6, (6,), (5,)), (lambda n: n < 7, (0,), (7,))],
        *[(lambda n: n <= 6, (6,), (7,)), (lambda n: n != 4, (5,), (4,)), (lambda n: n // 4 == 1, (7,), (8,))],
        *[(lambda n: (n - 6) * 2 == 0, (6,), (5,)), (lambda n: not n % 3, (9,), (10,))],
        (lambda n: 5 < n, (6,), (5,)),  # noqa: SIM300
        *[(float, (6,), (7,)), (lambda n: n / 2, (6,), (7,)), (lambda n: min(1.0, 2 / n), (6,), (7,))],
        *[(lambda n: [0] * n, (6,), (7,)), (lambda n: math.sqrt(n), (6,), (7,)), (lambda n: 10 - n, (6,), (7,))],
        (lambda n: f"{n:d}" == "6" and int(n), (6,), (7,)),
    ],
)
def test_a_path_allows_the_counts_that_take_the_same_way(ask, holds, fails):
    path, (probe,) = probes(6)
    plain = ask(6)
    assert ask(probe) == plain
    assert path.allows((6,))
    assert path.allows(holds)
    assert not path.allows(fails)


def test_a_path_without_conditions_allows_all_counts_and_knows_each_count_by_its_index():
    path, (first, second) = probes(3, 10)
    assert path.allows((0, 0))
    assert second % 10 == 0
    assert path.allows((4, 20))
    assert not path.allows((10, 3))
    assert first + 0 == 3
    assert not path.allows((4, 20))


@pytest.mark.parametrize(("period", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (1000, 0.001)])
def test_share_is_how_often_a_path_is_taken(period, share):
    path, (probe, _) = probes(period, 5)
    assert probe % period == 0
    assert path.share() == pytest.approx(share, abs=1e-9)
