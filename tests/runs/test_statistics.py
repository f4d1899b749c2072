import numpy as np
import pytest

from drl_cli.runs.statistics import RESAMPLES, interval, iqm


@pytest.mark.parametrize(
    ("scores", "expected"),
    [  # scipy.stats.trim_mean(scores, 0.25)
        *[([7.0], 7.0), ([1.0, 2.0, 3.0, 100.0], 2.5), ([5.0, -50.0, 1.0, 2.0, 3.0], 2.0)],
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0], 3.5),
    ],
)
def test_iqm_is_the_quarter_trimmed_mean(scores, expected):
    assert iqm(np.array(scores)) == pytest.approx(expected)


def test_iqm_along_an_axis():
    scores = np.random.default_rng(1).standard_normal((9, 5))
    np.testing.assert_allclose(iqm(scores), [iqm(column) for column in scores.T])
    np.testing.assert_allclose(iqm(scores.T, 1), iqm(scores))


def test_the_interval_of_a_mean_is_the_normal_distributions():
    scores = np.random.default_rng(2).normal(10.0, 3.0, 400)
    low, high = interval([scores], np.mean)
    half = 1.96 * scores.std() / np.sqrt(400)
    assert low == pytest.approx(scores.mean() - half, abs=0.05)
    assert high == pytest.approx(scores.mean() + half, abs=0.05)


def test_resampling_stays_within_its_stratum():
    low, high = interval([np.full(3, 1.0), np.full(5, 100.0)], np.mean)
    assert low == high == pytest.approx((3 + 500) / 8)
    spread = interval([np.concatenate([np.full(3, 1.0), np.full(5, 100.0)])], np.mean)
    assert spread[0] < 40 < 90 < spread[1]


def test_one_score_has_no_interval():
    assert np.isnan(interval([np.array([3.0])], np.mean)).all()
    assert np.isnan(interval([np.array([1.0, 2.0]), np.array([3.0])], np.mean)).all()
    assert interval([np.ones((1, 4))], iqm)[0].shape == (4,)


def test_equal_scores_give_equal_intervals_for_any_number_drawn_at_once(monkeypatch):
    scores = np.random.default_rng(3).standard_normal((6, 2))
    at_once = interval([scores], iqm)
    np.testing.assert_array_equal(at_once, interval([scores.copy()], iqm))
    monkeypatch.setattr("drl_cli.runs.statistics.MAX_DRAWN", 12 * 300)
    counts = []

    def counting(values, axis):
        counts.append(len(values))
        return iqm(values, axis)

    in_parts = interval([scores], counting)
    assert counts == [300] * 6 + [200]
    assert sum(counts) == RESAMPLES
    np.testing.assert_allclose(at_once, in_parts, atol=0.2)
