"""The limiters: simulations over random settings, orders and deaths."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.runtime.orchestrator.rate_limiter import QueueLimiter, RateLimiter, required_band


def simulate(limiter, rows, batches, workers=1, death=0.0, seed=0, num_events=300, trainers=2):
    """Issue all that is allowed, then let one call in flight come back, in random order; False at a deadlock.

    `trainers` are the train calls that may be in flight; a collect call that comes back from a dead worker is lost.
    """
    rng, collecting, training = random.Random(seed), 0, 0
    least = -limiter.band / 2 - (limiter.ratio * rows * workers if death else 0.0) - 1e-6
    most = max(limiter.band / 2, limiter.ratio * rows) + 1e-6  # the last block of the warm-up may go over the band
    for _ in range(num_events):
        while collecting < workers and limiter.may_collect(rows):
            limiter.issue_collect(rows)
            collecting += 1
        while training < trainers and limiter.may_sample(batches):
            assert limiter.landed >= max(1, limiter.min_inserts)
            limiter.issue_sample(batches)
            training += 1
        assert limiter.inserts == limiter.landed + collecting * rows
        if limiter.landed >= limiter.min_inserts:
            assert least <= limiter.target - limiter.samples <= most
        else:
            assert limiter.samples == 0 or death
        if collecting + training == 0:
            return False
        if rng.random() * (collecting + training) < collecting:
            collecting -= 1
            limiter.land(rows, 0 if rng.random() < death else rows)
        else:
            training -= 1
    return True


SETTINGS = {
    "ratio": st.one_of(st.sampled_from([0.1, 0.125, 0.3, 1.0, 4.0]), st.floats(0.01, 8)),
    "min_inserts": st.integers(0, 200),
    "rows": st.integers(1, 64),
    "batches": st.integers(1, 16),
    "excess": st.one_of(st.just(0.0), st.floats(0, 50)),
    "workers": st.integers(1, 5),
    "death": st.sampled_from([0.0, 0.05, 0.5]),
    "seed": st.integers(0, 2**32 - 1),
    "trainers": st.integers(1, 4),
}


@settings(deadline=None, max_examples=250)
@given(**SETTINGS)
def test_never_deadlocks_and_holds_the_ratio(ratio, min_inserts, rows, batches, excess, workers, death, seed, trainers):
    limiter = RateLimiter(ratio, min_inserts, required_band(ratio, rows, batches) + excess)
    assert simulate(limiter, rows, batches, workers, death, seed, trainers=trainers)
    assert limiter.inserts > 0


@pytest.mark.parametrize(
    ("ratio", "min_inserts", "rows", "batches"),
    [
        (1.0, 0, 16, 1),  # nothing may be sampled before the first block, which min_inserts=0 must not hold back
        (0.1, 8, 4, 2),  # at the edge of the band rounding must not close both sides
    ],
)
def test_the_required_band_is_enough(ratio, min_inserts, rows, batches):
    assert simulate(RateLimiter(ratio, min_inserts, required_band(ratio, rows, batches)), rows, batches)


def test_both_sides_make_progress():
    limiter = RateLimiter(0.25, 100, required_band(0.25, 32, 4))
    assert simulate(limiter, 32, 4, workers=3, num_events=2000)
    assert limiter.landed > 3000
    assert limiter.samples / (limiter.inserts - 100) == pytest.approx(0.25, rel=0.02)


def test_a_narrower_band_deadlocks():
    assert required_band(1.0, 8, 8) == 16.0
    assert not simulate(RateLimiter(1.0, 8, 15.0), 8, 8)
    assert simulate(RateLimiter(1.0, 8, 16.0), 8, 8)


@pytest.mark.parametrize("ratio", [0.1371, 0.7313, 1.6183])
@pytest.mark.parametrize(("rows", "batches"), [(16, 4), (8, 8), (4, 16)])
def test_the_required_band_is_tight(ratio, rows, batches):
    band = required_band(ratio, rows, batches)
    assert simulate(RateLimiter(ratio, 32, band), rows, batches, num_events=5000)
    assert not simulate(RateLimiter(ratio, 32, 0.9 * band), rows, batches, num_events=5000)


@pytest.mark.parametrize(
    ("ratio", "min_inserts", "inserts", "samples", "owed"),
    [
        (1.0, 100, 0, 0, 0),
        (1.0, 100, 99, 0, 0),
        (1.0, 100, 100, 0, 0),
        (1.0, 100, 101, 0, 1),
        (0.25, 100, 139, 0, 9),
        (0.25, 100, 140, 0, 10),
        (0.25, 100, 140, 4, 6),
        (0.25, 100, 140, 20, 0),
        (0.29, 0, 100, 0, 29),  # 0.29 * 100 is 28.999999999999996
        (0.1, 0, 30, 0, 3),
        (0.001, 1_000, 11_000_000, 10_000, 999),
        (4.0, 10, 12, 0, 8),
        (1.0, 0, 0, 0, 0),
    ],
)
def test_owed(ratio, min_inserts, inserts, samples, owed):
    assert RateLimiter(ratio, min_inserts, 1e9, inserts=inserts, landed=inserts, samples=samples).owed() == owed


def test_owed_with_rows_to_come():
    assert RateLimiter(0.25, 100, 1e9, inserts=139, landed=139, samples=4).owed(5) == 7
    assert QueueLimiter(64, 1, queued=100).owed(28) == 2
    assert QueueLimiter(64, 1, queued=100).owed(27) == 1


def test_owed_without_rows_that_may_not_come():
    assert RateLimiter(0.25, 100, 1e9, inserts=139, landed=119, samples=4).owed(-19) == 1
    assert QueueLimiter(64, 1, queued=100, in_flight=64).owed(-64) == 1  # those under way were not counted


def test_nothing_is_owed_before_min_inserts_have_landed():
    limiter = RateLimiter(1.0, 8, 1e9)
    limiter.issue_collect(16)
    assert limiter.owed() == 0
    assert not limiter.may_sample(1)
    limiter.land(16, 16)
    assert limiter.owed() == 8
    assert limiter.may_sample(1)


def test_a_lost_block_is_not_paid_for():
    limiter = RateLimiter(1.0, 8, 100.0)
    for rows in (8, 0, 5):  # whole, lost, short (rows still open in the n-step builder)
        limiter.issue_collect(8)
        limiter.land(8, rows)
    assert (limiter.inserts, limiter.landed) == (13, 13)
    assert limiter.target == 5.0


def test_free_runs_without_a_ratio_but_not_before_min_inserts():
    limiter = RateLimiter(1.0, 10, 1.0, free=True, inserts=9, landed=9)
    assert not limiter.may_sample(1)
    limiter.issue_collect(1)
    limiter.land(1, 1)
    assert limiter.may_sample(1000)
    limiter.issue_sample(1000)
    assert limiter.may_collect(10**6)
    assert limiter.may_sample(1000)


@settings(deadline=None, max_examples=250)
@given(
    batch_size=st.integers(1, 64),
    ahead=st.integers(1, 3),
    rows=st.integers(1, 80),
    workers=st.integers(1, 5),
    death=st.sampled_from([0.0, 0.3]),
    stale=st.sampled_from([0.0, 0.3]),
    free=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_queue_never_deadlocks_and_never_promises_what_is_not_there(
    batch_size, ahead, rows, workers, death, stale, free, seed
):
    """One train call at a time; rows go stale in the queue, which the limiter learns from the next answer."""
    rng, limiter = random.Random(seed), QueueLimiter(batch_size, ahead, free=free)
    queue = collecting = served = unreported = 0
    asked = None
    for _ in range(300):
        while collecting < workers and limiter.may_collect(rows):
            limiter.issue_collect(rows)
            collecting += 1
        if asked is None and limiter.may_sample(1):
            limiter.issue_sample(1)
            lost = rng.randint(0, queue) if rng.random() < stale else 0
            got = queue - lost >= batch_size
            queue, unreported = queue - lost - got * batch_size, unreported + lost
            served, asked = served + got, got
        assert collecting or asked is not None, f"deadlock: {limiter}"
        assert limiter.queued + (0 if asked is None else batch_size - asked * batch_size) == queue + unreported
        assert limiter.owed() == max(0, limiter.queued) // batch_size
        if not free and asked is None:
            back = batch_size if stale else 0  # a batch that was not served comes back to the queue
            assert limiter.queued + limiter.in_flight < max(batch_size, ahead * batch_size + 1) + rows + back
        if asked is None or rng.random() * (collecting + 1) < collecting:
            collecting -= 1
            landed = 0 if rng.random() < death else rows
            queue += landed
            limiter.land(rows, landed)
        else:
            limiter.unserved(1 - asked, unreported)
            asked, unreported = None, 0
            assert limiter.queued == queue
    assert served or stale or death or 300 * rows < 4 * batch_size


@pytest.mark.parametrize(
    ("ahead", "queued", "in_flight", "rows", "may_collect"),
    [
        (1, 0, 0, 8, True),
        (1, 15, 0, 8, True),  # less than a batch
        (1, 0, 16, 8, False),  # a batch is on its way
        (1, 8, 8, 8, False),
        (2, 16, 8, 8, True),
        (2, 16, 9, 8, False),
        (2, 15, 0, 80, True),
    ],
)
def test_a_queue_may_wait_so_far_ahead(ahead, queued, in_flight, rows, may_collect):
    limiter = QueueLimiter(16, ahead, in_flight=in_flight, queued=queued)
    assert limiter.may_collect(rows) == may_collect
    assert limiter.may_sample(1) == (queued >= 16)
    assert QueueLimiter(16, ahead, True, in_flight, queued).may_collect(rows)


def test_from_min_inserts_on_the_band_holds_and_updates_are_owed():
    limiter = RateLimiter(1.0, 8, 2.0, inserts=8, landed=8)
    assert limiter.may_collect(1)
    assert not limiter.may_collect(4)
    assert RateLimiter(1.0, 8, 2.0, inserts=7, landed=7).may_collect(4)
    assert RateLimiter(1.0, 8, 2.0, inserts=12, landed=8).owed() == 4
    assert RateLimiter(1.0, 8, 2.0, inserts=12, landed=7).owed() == 0


def test_the_state_has_what_landed_and_not_what_is_in_flight():
    limiter, queue = RateLimiter(0.5, 8, 1e9), QueueLimiter(16, 2)
    for one in (limiter, queue):
        one.issue_collect(32)
        one.issue_collect(32)
        one.land(32, 30)
    limiter.issue_sample(3)
    assert limiter.state() == {"landed": 30, "samples": 3}
    assert queue.state() == {"queued": 30}
    resumed, empty = RateLimiter(0.5, 8, 1e9), QueueLimiter(16, 2)
    resumed.load_state(limiter.state())
    empty.load_state(queue.state())
    assert (resumed.inserts, resumed.landed, resumed.samples) == (30, 30, 3)
    assert (empty.queued, empty.in_flight) == (30, 0)


def test_one_transition_is_enough_where_none_is_asked_for():
    limiter = RateLimiter(1.0, 0, 10.0)
    assert not limiter.may_sample(1)
    assert limiter.may_collect(1)
    limiter.issue_collect(1)
    limiter.land(1, 1)
    assert limiter.may_sample(1)
    assert limiter.owed() == 1
