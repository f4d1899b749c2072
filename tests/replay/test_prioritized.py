import numpy as np
import pytest

from drl_cli.replay.samplers import Prioritized


def make(capacity=10, seed=0, num_batches=100, **options):
    options = {"alpha": 0.6, "beta": 0.4, "eps": 1e-6, "uniform_mix": 0.0} | options
    return Prioritized(np.random.default_rng(seed), capacity, num_batches, **options)


def filled(capacity, priorities, **options):
    sampler = make(capacity, **options)
    sampler.insert(np.arange(len(priorities)))
    sampler.update(np.arange(len(priorities)), np.asarray(priorities, np.float32))
    return sampler


def probabilities(priorities, alpha=0.6, eps=1e-6, uniform_mix=0.0):
    powers = (np.asarray(priorities, np.float32).astype(np.float64) + eps) ** alpha
    return (1 - uniform_mix) * powers / powers.sum() + uniform_mix / len(powers)


def some_priorities(count, seed=0):
    """Return priorities over four powers of ten; every seventh is 0."""
    priorities = 10.0 ** np.random.default_rng(seed).uniform(-2, 2, count)
    priorities[::7] = 0
    return priorities


def test_batches_are_stratified():
    priorities = some_priorities(100)
    slots = filled(100, priorities).sample(100, 4000, 256)[0]
    expected = probabilities(priorities)
    # 256 equal shares: a slot appears in a batch as often as expected, give or take what straddles its two ends.
    counts = np.stack([np.bincount(batch, minlength=100) for batch in slots])
    assert np.abs(counts - 256 * expected).max() < 2
    assert counts.mean(0) == pytest.approx(256 * expected, abs=5 * np.sqrt(0.5 / 4000))
    assert (np.diff(slots, axis=1) >= 0).all()


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("num_batches", [2, 7, 1000])
def test_beta_rises_to_exactly_1(beta, num_batches):
    sampler = make(beta=beta, num_batches=num_batches)
    values = sampler.beta(np.arange(num_batches + 50))
    assert values[0] == pytest.approx(beta)
    assert (values[num_batches - 1 :] == 1.0).all()
    np.testing.assert_allclose(values[:num_batches], np.linspace(beta, 1, num_batches))
    sampler.insert(np.arange(4))
    for _ in range(num_batches):
        assert sampler.stats()["beta"] < 1 or beta == 1
        sampler.sample(4, 1, 2)
    assert sampler.stats()["beta"] == 1.0


def test_new_rows_have_the_largest_priority_in_the_table():
    sampler = make(8, alpha=1.0)
    sampler.insert(np.arange(4))
    assert sampler.tree.values.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    sampler.update(np.arange(4), np.array([0.25, 7.0, 0.5, 0.0], np.float32))
    sampler.insert(np.arange(4, 6))
    assert sampler.tree.values[4:6] == pytest.approx(7, rel=1e-5)
    assert sampler.stats()["max_priority"] == sampler.tree.values[4]
    # The old largest priority does not count any more.
    sampler.update(np.array([1, 4, 5]), np.array([0.125, 0.125, 0.125], np.float32))
    sampler.insert(np.arange(6, 8))
    assert sampler.tree.values[6:] == pytest.approx(0.5, rel=1e-5)


def test_bad_priorities_count_as_zero_and_are_counted():
    sampler = filled(6, [1.0, np.nan, np.inf, -np.inf, -2.0, 1.0], eps=1e-3, alpha=1.0)
    assert sampler.tree.values[:6] == pytest.approx([1.001, 1e-3, 1e-3, 1e-3, 1e-3, 1.001])
    assert np.isfinite(sampler.tree.total)
    assert sampler.stats()["bad_priorities"] == 4
    sampler.update(np.array([0]), np.array([np.nan], np.float32))
    assert sampler.stats()["bad_priorities"] == 5
    assert np.isfinite(sampler.sample(6, 100, 10)[1]).all()


def test_huge_priorities_stay_finite():
    sampler = filled(4, np.full(4, np.finfo(np.float32).max), alpha=1.0)
    assert (sampler.sample(4, 10, 10)[1] == 1).all()
