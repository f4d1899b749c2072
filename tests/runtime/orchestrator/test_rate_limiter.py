import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.runtime.orchestrator.rate_limiter import QueueLimiter, RateLimiter, ReadLimiter, required_band


def simulate(limiter, rows, batches, workers=1, death=0.0, seed=0, num_events=300, trainers=2):
    """Issue every allowed call, then let a random call in flight end, and so on; return False at a deadlock.

    Up to `trainers` train calls are in flight. A collect call is lost with probability `death`.
    """
    rng, collecting, training = random.Random(seed), 0, 0
    least = -limiter.band / 2 - (limiter.ratio * rows * workers if death else 0.0) - 1e-6
    most = max(limiter.band / 2, limiter.ratio * rows) + 1e-6  # the last block of the warm-up may exceed the band
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
            assert least <= limiter.ratio * max(0, limiter.inserts - limiter.min_inserts) - limiter.samples <= most
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


@settings(deadline=None, max_examples=150)
@given(**SETTINGS)
def test_never_deadlocks_and_holds_the_ratio(ratio, min_inserts, rows, batches, excess, workers, death, seed, trainers):
    limiter = RateLimiter(ratio, min_inserts, required_band(ratio, rows, batches) + excess)
    assert simulate(limiter, rows, batches, workers, death, seed, trainers=trainers)
    assert limiter.inserts > 0


@pytest.mark.parametrize(
    ("ratio", "min_inserts", "rows", "batches"),
    [
        (1.0, 0, 16, 1),  # min_inserts=0 must not hold back the first block, before which nothing can be sampled
        (0.1, 8, 4, 2),  # rounding at the edge of the band must not stop both sides
        (0.25, 100, 32, 4),
        *[(ratio, 32, *sizes) for ratio in (0.1371, 0.7313, 1.6183) for sizes in ((16, 4), (8, 8), (4, 16))],
    ],
)
def test_the_required_band_is_enough_and_less_deadlocks(ratio, min_inserts, rows, batches):
    band = required_band(ratio, rows, batches)
    assert band == ratio * rows + batches
    limiter = RateLimiter(ratio, min_inserts, band)
    assert simulate(limiter, rows, batches, workers=1, num_events=2000)
    assert limiter.samples / (limiter.inserts - min_inserts) == pytest.approx(ratio, rel=0.02)
    if min_inserts == 32:
        assert not simulate(RateLimiter(ratio, 32, 0.9 * band), rows, batches, num_events=2000)


@pytest.mark.parametrize(
    ("ratio", "min_inserts", "inserts", "samples", "rows", "owed"),
    [
        *[(1.0, 100, 0, 0, 0, 0), (1.0, 100, 99, 0, 0, 0), (1.0, 100, 100, 0, 0, 0), (1.0, 100, 101, 0, 0, 1)],
        *[(0.25, 100, 139, 0, 0, 9), (0.25, 100, 140, 0, 0, 10), (0.25, 100, 140, 4, 0, 6)],
        (0.25, 100, 140, 20, 0, 0),
        (0.29, 0, 100, 0, 0, 29),  # 0.29 * 100 is 28.999999999999996
        *[(0.1, 0, 30, 0, 0, 3), (0.001, 1_000, 11_000_000, 10_000, 0, 999), (4.0, 10, 12, 0, 0, 8)],
        *[(1.0, 0, 0, 0, 0, 0), (1.0, 0, 1, 0, 0, 1), (0.25, 100, 139, 4, 5, 7), (0.25, 100, 139, 4, -19, 1)],
    ],
)
def test_batches_owed(ratio, min_inserts, inserts, samples, rows, owed):
    limiter = RateLimiter(ratio, min_inserts, 1e9, inserts=inserts, landed=inserts, samples=samples)
    assert limiter.owed(rows) == owed
    assert limiter.may_sample(1) == (inserts >= max(1, min_inserts))
    assert limiter.may_collect(1)


@pytest.mark.parametrize(("rows", "in_flight", "owed"), [(0, 0, 1), (27, 0, 1), (28, 0, 2), (-64, 64, 1)])
def test_batches_owed_by_a_queue(rows, in_flight, owed):
    assert QueueLimiter(64, 1, queued=100, in_flight=in_flight).owed(rows) == owed


def test_transitions_in_flight_count_for_the_target_but_not_as_landed():
    limiter = RateLimiter(1.0, 8, 2.0)
    limiter.issue_collect(7)
    assert limiter.may_collect(4)  # the warm-up is not over
    limiter.issue_collect(1)
    assert (limiter.may_collect(1), limiter.may_collect(4)) == (True, False)  # the band holds
    limiter.issue_collect(8)
    assert (limiter.owed(), limiter.may_sample(1)) == (0, False)
    limiter.land(16, 16)
    assert (limiter.owed(), limiter.may_sample(1)) == (8, True)


def test_a_free_limiter_holds_min_inserts_alone():
    limiter = RateLimiter(1.0, 10, 1.0, free=True, inserts=9, landed=9)
    assert not limiter.may_sample(1)
    limiter.issue_collect(1)
    limiter.land(1, 1)
    for _ in range(2):
        assert limiter.may_sample(1000)
        limiter.issue_sample(1000)
    assert limiter.may_collect(10**6)


@settings(deadline=None, max_examples=150)
@given(
    batch_size=st.integers(1, 64),
    ahead=st.integers(1, 3),
    rows=st.integers(1, 80),
    workers=st.integers(1, 5),
    death=st.sampled_from([0.0, 0.3]),
    stale=st.sampled_from([0.0, 0.3]),
    free=st.booleans(),
    times=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_queue_never_deadlocks_and_counts_what_is_queued(
    batch_size, ahead, rows, workers, death, stale, free, times, seed
):
    """One train call at a time; rows become too old in the queue, and the next answer tells the limiter."""
    rng, limiter = random.Random(seed), QueueLimiter(batch_size, ahead, free=free, times=times)
    queue = collecting = served = repeats = 0
    asked = None
    for _ in range(300):
        while collecting < workers and limiter.may_collect(rows):
            limiter.issue_collect(rows)
            collecting += 1
        if asked is None and limiter.may_sample(1):
            limiter.issue_sample(1)
            if rng.random() < stale:
                queue, repeats = rng.randint(0, queue), rng.choice([0, repeats])
            is_new = repeats == 0 and queue >= batch_size
            got = int(repeats > 0 or is_new)
            queue, repeats = queue - is_new * batch_size, (times if is_new else repeats) - got
            served, asked = served + got, (got, queue, repeats)
        assert collecting or asked is not None, f"deadlock: {limiter}"
        assert limiter.owed() == limiter.repeats + times * (max(0, limiter.queued) // batch_size)
        if asked is None:
            assert (limiter.queued, limiter.repeats) == (queue, repeats)
            if not free:
                assert limiter.queued + limiter.in_flight < max(batch_size, ahead * batch_size + 1) + rows + (
                    batch_size if stale else 0  # a batch that was not served counts as queued again
                )
        elif not stale:
            assert (limiter.queued, limiter.repeats) == (queue, repeats)  # as expected when the batch was asked for
        if asked is None or rng.random() * (collecting + 1) < collecting:
            collecting -= 1
            landed = 0 if rng.random() < death else rows
            queue += landed
            limiter.land(rows, landed)
        else:
            limiter.served(1, *asked)
            asked = None
            assert (limiter.queued, limiter.repeats) == (queue, repeats)
    assert served or stale or death or 300 * rows < 4 * batch_size


@pytest.mark.parametrize(("times", "drawn"), [(1, [8, 0]), (2, [8, 8, 0, 0]), (3, [8, 8, 8, 0, 0, 0])])
def test_a_queue_owes_each_batch_several_times(times, drawn):
    limiter = QueueLimiter(8, 1, times=times)
    limiter.land(0, 19)
    assert limiter.owed() == 2 * times
    for call, queued in enumerate(drawn):
        assert limiter.may_sample(1)
        limiter.issue_sample(1)
        assert (limiter.owed(), limiter.queued) == (2 * times - call - 1, 3 + queued)
    assert not limiter.may_sample(1)


@pytest.mark.parametrize(
    ("ahead", "queued", "in_flight", "rows", "may_collect"),
    [
        (1, 0, 0, 8, True),
        (1, 15, 0, 8, True),  # less than a batch
        (1, 0, 16, 8, False),  # a batch is in flight
        *[(1, 8, 8, 8, False), (2, 16, 8, 8, True), (2, 16, 9, 8, False), (2, 15, 0, 80, True)],
    ],
)
def test_workers_collect_up_to_ahead_batches(ahead, queued, in_flight, rows, may_collect):
    limiter = QueueLimiter(16, ahead, in_flight=in_flight, queued=queued)
    assert limiter.may_collect(rows) == may_collect
    assert limiter.may_sample(1) == (queued >= 16)
    assert QueueLimiter(16, ahead, True, in_flight, queued).may_collect(rows)


def test_the_state_excludes_calls_in_flight():
    limiter, queue = RateLimiter(0.5, 8, 1e9), QueueLimiter(16, 2)
    for one in (limiter, queue):
        one.issue_collect(32)
        one.issue_collect(32)
        one.land(32, 30)
    limiter.issue_sample(3)
    assert (limiter.state(), queue.state()) == ({"landed": 30, "samples": 3}, {"queued": 30, "repeats": 0})
    resumed, empty = RateLimiter(0.5, 8, 1e9), QueueLimiter(16, 2)
    resumed.load_state(limiter.state())
    empty.load_state(queue.state())
    assert (resumed.inserts, resumed.landed, resumed.samples) == (30, 30, 3)
    assert (empty.queued, empty.in_flight) == (30, 0)


def read(limiter, updates_per_call, rows_per_block):
    """Return the transitions that were read before each update of a whole run."""
    before = []
    while limiter.samples < limiter.total:
        if owed := limiter.owed():
            assert limiter.may_sample(owed)
            before += [limiter.landed] * min(owed, updates_per_call)
            limiter.issue_sample(min(owed, updates_per_call))
        else:
            assert limiter.may_collect(rows_per_block)
            limiter.issue_collect(rows_per_block)
            limiter.land(rows_per_block, rows_per_block)
    assert limiter.owed() == 0
    return before


def test_a_dataset_that_fits_is_read_once_before_the_first_update():
    assert read(ReadLimiter(50, fill=1000), 16, 300) == [1200] * 50


@pytest.mark.parametrize("rows_per_update", [0.3, 4.0, 100.0])
def test_a_dataset_that_does_not_fit_is_read_at_the_same_rate_during_the_whole_run(rows_per_update):
    before = read(ReadLimiter(500, fill=1000, rows_per_update=rows_per_update), 16, 64)
    for update, rows in enumerate(before):
        assert 0 <= rows - 1000 - rows_per_update * update + 1 <= 2 * 64 + rows_per_update


def test_a_read_limiter_goes_on_from_its_state():
    limiter, other = ReadLimiter(500, 1000, 4.0), ReadLimiter(500, 1000, 4.0)
    limiter.land(64, 1400)
    limiter.issue_sample(30)
    other.load_state(limiter.state())
    assert other == limiter


def test_a_lost_table_is_filled_again_before_the_next_update():
    limiter = ReadLimiter(500, 1000, 4.0)
    limiter.land(64, 1400)
    limiter.issue_sample(90)
    due = limiter.owed()
    assert due > 0
    limiter.lose()
    limiter.land(64, 999)
    assert (limiter.owed(), limiter.may_collect(64)) == (0, True)
    limiter.land(64, 1)
    assert limiter.owed() == due
