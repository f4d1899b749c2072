"""FifoOnce serves each row once, in order and while fresh, as a plain list does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.replay.fifo import FifoOnce
from drl_cli.types import Column

SCHEMA = {"id": Column((), "int64"), "obs": Column((2,), "float32")}


def make(capacity=100, max_staleness=1):
    return FifoOnce(SCHEMA, capacity, max_staleness)


def insert(table, first, versions):
    ids = np.arange(first, first + len(versions))
    table.insert({"id": ids, "obs": np.stack([ids, -ids], 1).astype(np.float32)}, np.array(versions, np.int64))


def ids(sampled):
    return sampled.columns["id"].ravel().tolist()


INSERT = st.tuples(st.just("insert"), st.lists(st.integers(0, 3), min_size=1, max_size=12))
SAMPLE = st.tuples(st.just("sample"), st.tuples(st.integers(1, 3), st.integers(1, 6)))
PUBLISH = st.tuples(st.just("publish"), st.just(None))


@settings(deadline=None, max_examples=150)
@given(st.integers(12, 40), st.integers(0, 3), st.lists(INSERT | SAMPLE | PUBLISH, max_size=40))
def test_every_row_is_served_once_or_dropped(capacity, max_staleness, calls):
    table = make(capacity, max_staleness)
    waiting, served, dropped, told, version, total = [], [], 0, 0, 3, 0
    for call, value in calls:
        if call == "publish":
            version += 1
        elif call == "insert":  # each row is up to 3 versions old: workers whose blocks were merged
            insert(table, total, [version - age for age in value])
            waiting += [(total + i, version - age) for i, age in enumerate(value)]
            total += len(value)
            kept = [(row, made) for row, made in waiting if row >= total - capacity]
            dropped, waiting = dropped + len(waiting) - len(kept), kept
        else:
            num_batches, batch_size = value
            fresh = [(row, made) for row, made in waiting if version - made <= max_staleness]
            dropped, waiting = dropped + len(waiting) - len(fresh), fresh
            expected = min(num_batches, len(waiting) // batch_size)
            sampled = table.sample(num_batches, batch_size, version)
            assert sampled.num_batches == expected
            assert sampled.columns["id"].shape == (expected, batch_size)
            assert sampled.columns["obs"].shape == (expected, batch_size, 2)
            assert ids(sampled) == [row for row, _ in waiting[: expected * batch_size]]
            assert sampled.columns["obs"][..., 1].ravel().tolist() == [-row for row in ids(sampled)]
            told += sampled.dropped
            assert told == dropped
            served += ids(sampled)
            waiting = waiting[expected * batch_size :]
        assert len(table) == len(waiting)
        assert table.contents()["id"].tolist() == [row for row, _ in waiting]
        assert table.inserts == total == len(served) + len(waiting) + dropped
    assert served == sorted(set(served))
    assert table.stats()["dropped_rows"] == dropped


def test_rows_beyond_the_capacity_replace_the_oldest():
    table = make(capacity=10)
    insert(table, 0, [0] * 8)
    insert(table, 8, [0] * 8)
    sampled = table.sample(1, 10, 0)
    assert ids(sampled) == [*range(6, 16)]
    assert sampled.dropped == 6
    insert(table, 16, [0] * 8)  # in slots whose rows were served: nothing is lost
    assert table.sample(1, 8, 0).dropped == 0
    with pytest.raises(ValueError, match=r"replay\.capacity=10"):
        insert(table, 0, [0] * 11)


def test_stale_rows_are_dropped_and_reported_once():
    table = make(max_staleness=2)
    insert(table, 0, [5, 3, 4, 2, 5])
    sampled = table.sample(1, 2, 6)  # 3 and 2 are too old
    assert (ids(sampled), sampled.dropped) == ([0, 2], 2)
    sampled = table.sample(1, 1, 8)
    assert (ids(sampled), sampled.num_batches, sampled.dropped) == ([], 0, 1)
    assert table.sample(1, 1, 8).dropped == 0


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
    assert (len(table), table.inserts) == (0, 0)
