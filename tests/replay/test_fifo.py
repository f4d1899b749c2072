"""FifoTable serves each row `times` times, in order and while fresh, as a plain list does."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.replay.base import Load
from drl_cli.replay.fifo import FifoConfig, FifoTable
from drl_cli.types import Column

SCHEMA = {"id": Column((), "int64"), "obs": Column((2,), "float32")}


def make(capacity=100, max_staleness=1, times=1):
    return FifoTable(SCHEMA, capacity, max_staleness, times=times)


def insert(table, first, versions):
    ids = np.arange(first, first + len(versions))
    table.insert({"id": ids, "obs": np.stack([ids, -ids], 1).astype(np.float32)}, np.array(versions, np.int64))


def ids(sampled):
    return sampled.columns["id"].ravel().tolist()


INSERT = st.tuples(st.just("insert"), st.lists(st.integers(0, 3), min_size=1, max_size=12))
SAMPLE = st.tuples(st.just("sample"), st.tuples(st.integers(1, 3), st.integers(1, 6)))
PUBLISH = st.tuples(st.just("publish"), st.just(None))


class Model:
    """The queue as plain lists of (row, version)."""

    def __init__(self, capacity, max_staleness, times):
        self.capacity, self.max_staleness, self.times = capacity, max_staleness, times
        self.waiting, self.batch, self.repeats, self.dropped = [], [], 0, 0

    def keep(self, is_kept, batch_size=None):
        kept = [row for row in self.waiting if is_kept(row)]
        self.dropped, self.waiting = self.dropped + len(self.waiting) - len(kept), kept
        if self.repeats and not (all(map(is_kept, self.batch)) and batch_size in (None, len(self.batch))):
            self.dropped, self.batch, self.repeats = self.dropped + len(self.batch), [], 0

    def insert(self, rows):
        self.waiting += rows
        self.keep(lambda row: row[0] >= self.waiting[-1][0] + 1 - self.capacity)

    def sample(self, num_batches, size, version):
        self.keep(lambda row: version - row[1] <= self.max_staleness, size)
        served = []
        while len(served) < num_batches and (self.repeats or len(self.waiting) >= size):
            if not self.repeats:
                self.batch, self.waiting, self.repeats = self.waiting[:size], self.waiting[size:], self.times
            served.append([row for row, _ in self.batch])
            self.repeats -= 1
        return served


@settings(deadline=None, max_examples=200)
@given(st.integers(12, 40), st.integers(0, 3), st.integers(1, 3), st.lists(INSERT | SAMPLE | PUBLISH, max_size=40))
def test_every_row_is_served_times_times_or_dropped(capacity, max_staleness, times, calls):
    table, model = make(capacity, max_staleness, times), Model(capacity, max_staleness, times)
    served, version, total = Counter(), 3, 0
    for call, value in calls:
        if call == "publish":
            version += 1
        elif call == "insert":  # each row is up to 3 versions old: workers whose blocks were merged
            insert(table, total, [version - age for age in value])
            model.insert([(total + i, version - age) for i, age in enumerate(value)])
            total += len(value)
        else:
            num_batches, batch_size = value
            expected = model.sample(num_batches, batch_size, version)
            sampled = table.sample(num_batches, batch_size, version)
            assert sampled.num_batches == len(expected)
            assert sampled.columns["id"].shape == (len(expected), batch_size)
            assert sampled.columns["obs"].shape == (len(expected), batch_size, 2)
            assert sampled.columns["id"].tolist() == expected
            assert sampled.columns["obs"][..., 1].ravel().tolist() == [-row for row in ids(sampled)]
            assert (sampled.waiting, sampled.repeats) == (len(model.waiting), model.repeats)
            served.update(ids(sampled))
        held = [row for row, _ in (model.batch if model.repeats else []) + model.waiting]
        assert (len(table), table.contents()["id"].tolist()) == (len(model.waiting), held)
        assert table.stats()["dropped_rows"] == model.dropped
        done = sum(num == times for num in served.values())
        assert table.inserts == total == done + len(held) + model.dropped
    assert all(num <= times for num in served.values())


def test_a_restored_queue_serves_the_rest_of_a_batch():
    table, other = make(times=3), make(times=3)
    insert(table, 0, [0] * 6)
    table.sample(1, 4, 0)
    other.load_state(table.state())
    other.store.fill([table.store.contents()])
    drawn = [[ids(one.sample(1, 4, 0)) for _ in range(3)] for one in (table, other)]
    assert drawn == [[[0, 1, 2, 3], [0, 1, 2, 3], []]] * 2


def test_stats_describe_the_last_served_rows():
    table = make(max_staleness=3)
    assert table.stats() == {"size": 0, "dropped_rows": 0, "staleness_mean": 0.0, "staleness_max": 0.0}
    insert(table, 0, [4, 4, 5, 7, 1, 7])
    table.sample(1, 4, 7)
    served = {"size": 1, "dropped_rows": 1, "staleness_mean": 2.0, "staleness_max": 3.0}
    assert table.stats() == served
    table.sample(1, 4, 8)  # nothing to serve
    assert table.stats() == served


def test_served_rows_are_copies():
    table = make(capacity=4)
    insert(table, 0, [0] * 4)
    sampled = table.sample(1, 4, 0)
    insert(table, 4, [0] * 4)
    assert ids(sampled) == [0, 1, 2, 3]
    assert set(sampled.columns) == set(table.contents()) == set(SCHEMA)


def test_refuses_priorities_and_other_columns():
    table = make()
    with pytest.raises(ValueError, match="no priorities"):
        table.update_priorities(np.zeros((1, 1), np.int64), np.ones((1, 1)))
    with pytest.raises(ValueError, match="replay holds"):
        table.insert({"id": np.zeros(2, np.int64)}, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"replay\.capacity=100"):
        insert(table, 0, [0] * 101)
    assert (len(table), table.inserts) == (0, 0)


@pytest.mark.parametrize(
    ("max_staleness", "versions", "ahead"), [(1, 1, 1), (0, 1, 1), (3, 1, 3), (5, 3, 1), (8, 3, 2)]
)
def test_batches_wait_only_while_their_last_serving_is_not_too_old(max_staleness, versions, ahead):
    config = FifoConfig("fifo", 1000, 1, max_staleness, times=3)
    assert config.batches_ahead(versions) == ahead
    assert versions == 1 or (ahead + 1) * versions - 1 <= max_staleness


@pytest.mark.parametrize(("times", "capacity", "bound"), [(1, 96, 5), (3, 96, 5), (1, 80, 5), (3, 80, 4), (3, 20, 2)])
def test_auto_lets_every_worker_collect_as_far_as_the_queue_has_room(times, capacity, bound):
    load = Load(1000, 8, 4, 40, is_async=True, versions_per_batch=1)  # the rollouts of all workers are five batches
    config = FifoConfig("fifo", capacity, 1, "auto", times=times).filled(load)
    assert config.max_staleness == bound
    assert bound == 2 or list(config.problems(load)) == []


@pytest.mark.parametrize(
    ("options", "load", "part"),
    [
        ({"max_staleness": 4}, {"versions_per_batch": 3}, "say replay.max_staleness=5, or leave out"),
        ({"capacity": 47}, {}, "below 48 = 2 x trainer.batch_size 16 that may wait + 16 transitions"),
    ],
)
def test_problems_of_a_queue_that_serves_several_times(options, load, part):
    config, fits = FifoConfig("fifo", 48, 1, 5, times=3), Load(1000, 16, 8, 16, is_async=True, versions_per_batch=1)
    few = replace(config, max_staleness=1)
    assert list(few.problems(fits)) == []
    (line,) = replace(few if "capacity" in options else config, **options).problems(fits._replace(**load))
    assert part in line
