from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.replay.store import RandomStore, RingStore, row_bytes
from drl_cli.types import Column

SCHEMA = {"obs": Column((2, 3), "uint8"), "reward": Column((), "float32"), "id": Column((), "int64")}


def block(first, count):
    ids = np.arange(first, first + count)
    return {
        "obs": np.broadcast_to((ids % 256).astype(np.uint8)[:, None, None], (count, 2, 3)),
        "reward": ids.astype(np.float32) / 2,
        "id": ids,
    }


def check_rows(rows):
    np.testing.assert_array_equal(rows["reward"], rows["id"] / 2)
    np.testing.assert_array_equal(rows["obs"], np.broadcast_to((rows["id"] % 256)[:, None, None], rows["obs"].shape))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 50), st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 60) | st.none())
def test_holds_exactly_the_newest_rows(capacity, counts, most_inserts):
    store, total = RingStore(SCHEMA, capacity, most_inserts), 0
    for count in counts:
        count = min(count, capacity)
        store.insert(block(total, count))
        total += count
        assert store.inserts == total
        assert len(store) == min(total, capacity)
        slots = np.arange(len(store))
        rows, row_ids, ever = store.take(slots), store.row_ids(slots), np.arange(total)
        assert sorted(rows["id"]) == list(range(max(0, total - capacity), total))
        check_rows(rows)
        assert row_ids.dtype == np.int64
        assert row_ids.tolist() == rows["id"].tolist()
        assert (row_ids % capacity).tolist() == slots.tolist()
        assert ever[store.holds(ever)].tolist() == sorted(row_ids)


@pytest.mark.parametrize("kind", [RingStore, partial(RandomStore, rng=np.random.default_rng(0))])
def test_memory_is_reserved_for_the_expected_rows(kind):
    store = kind(SCHEMA, 10**6, most_inserts=10)
    assert sum(column.nbytes for column in store.columns.values()) == 10 * row_bytes(SCHEMA)
    store.insert(block(0, 10))
    before = store.columns["id"]
    store.insert(block(10, 5))
    assert before is not (grown := store.columns["id"])
    store.insert(block(15, 0))
    assert store.columns["id"] is grown
    check_rows(store.contents())
    assert store.contents()["id"].tolist() == list(range(15))
    restored = kind(SCHEMA, 10**6, most_inserts=3)
    restored.load_state(store.state())
    restored.fill([store.contents()])
    assert restored.contents()["id"].tolist() == list(range(15))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 50), st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 99))
def test_random_removal_keeps_whole_rows_with_unique_ids(capacity, counts, seed):
    store, total = RandomStore(SCHEMA, capacity, np.random.default_rng(seed), most_inserts=seed), 0
    given_out, there, writes = set(), {}, np.zeros(capacity, np.int64)  # numbers; slot -> id; rows so far in each slot
    for count in counts:
        count = min(count, capacity)
        before = len(store)
        slots = store.insert(block(total, count))
        fill = min(count, capacity - before)
        assert slots[:fill].tolist() == list(range(before, before + fill))
        assert len(set(slots[fill:].tolist())) == count - fill
        writes += np.bincount(slots, minlength=capacity)
        there |= {int(slot): total + i for i, slot in enumerate(slots)}
        total += count
        assert (store.inserts, len(store)) == (total, min(total, capacity))
        rows, numbers = store.take(np.arange(len(store))), store.row_ids(np.arange(len(store)))
        assert dict(enumerate(rows["id"].tolist())) == there
        check_rows(rows)
        assert numbers.dtype == np.int64
        assert numbers.tolist() == [slot + (writes[slot] - 1) * capacity for slot in range(len(store))]
        given_out |= set(numbers.tolist())
        ever = np.array(sorted(given_out), np.int64)
        assert ever[store.holds(ever)].tolist() == sorted(numbers.tolist())


def test_random_removal_keeps_rows_of_all_ages():
    store = RandomStore({"id": Column((), "int64")}, 1000, np.random.default_rng(0))
    for first in range(0, 5000, 100):
        store.insert({"id": np.arange(first, first + 100)})
    ages = 49 - store.contents()["id"] // 100  # in blocks
    # Blocks survive with 0.9^age; the first ten filled the table together.
    expected = np.append(1000 * 0.1 * 0.9 ** np.arange(40), 1000 * 0.9**40)
    counts = np.bincount(np.minimum(ages, 40), minlength=41)
    assert counts[0] == 100
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


def test_columns_keep_their_dtype_and_are_allocated_once():
    store = RingStore(SCHEMA, 100)
    assert {name: column.dtype.name for name, column in store.columns.items()} == {
        "obs": "uint8",
        "reward": "float32",
        "id": "int64",
    }
    before = {name: column.ctypes.data for name, column in store.columns.items()}
    assert store.nbytes == 100 * row_bytes(SCHEMA) == 100 * (6 + 4 + 8)
    store.insert(block(0, 99))
    store.insert(block(99, 99))
    assert {name: column.ctypes.data for name, column in store.columns.items()} == before
    assert store.take(np.array([[0, 1]]))["obs"].dtype == np.uint8


def test_refuses_other_columns_and_blocks_that_do_not_fit():
    store, rows = RingStore(SCHEMA, 4), block(0, 2)
    with pytest.raises(ValueError, match="replay holds"):
        store.insert({name: rows[name] for name in ("obs", "reward")})
    with pytest.raises(ValueError, match="replay holds"):
        store.insert(rows | {"extra": rows["id"]})
    with pytest.raises(ValueError, match=r"5 rows .* replay.capacity=4"):
        store.insert(block(0, 5))
    assert store.inserts == 0


def test_take_gives_fresh_contiguous_columns():
    store = RingStore(SCHEMA, 10)
    store.insert(block(0, 10))
    slots = np.array([[1, 2, 3], [4, 4, 9]])
    rows = store.take(slots)
    assert rows["id"].tolist() == slots.tolist()
    assert (store.take(slots[1])["id"].tolist(), rows["obs"].shape) == ([4, 4, 9], (2, 3, 2, 3))
    assert all(column.flags.c_contiguous for column in rows.values())
    for column in rows.values():
        column[...] = 99
    check_rows(store.take(np.arange(10)))


@pytest.mark.parametrize("kind", [RingStore, partial(RandomStore, rng=np.random.default_rng(0))])
def test_a_write_changes_only_these_columns_and_raises_the_stamps(kind):
    store = kind(SCHEMA, 10)
    for first in (0, 7):
        store.insert(block(first, 7))
    before, stamps, told = store.contents(), store.stamps(4), []
    store.on_write = lambda slots: told.append((slots.tolist(), store.columns["reward"][slots].tolist()))
    old = store.columns["reward"][[1, 8]].tolist()
    store.write(np.array([1, 8, 1]), {"reward": np.array([100.0, 200.0, 300.0])})
    assert told == [([1, 8, 1], [old[0], old[1], old[0]])]  # before the rows change
    assert store.columns["reward"][[1, 8]].tolist() == [300.0, 200.0]
    after = store.contents()
    assert (after["reward"] != before["reward"]).sum() == 2
    np.testing.assert_array_equal(after["id"], before["id"])
    assert [new > was for new, was in zip(store.stamps(4), stamps, strict=True)] == [True, False, True]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"reward": np.zeros(2), "log_prob": np.zeros(2)}, "no column 'log_prob'; it has obs, reward, id"),
        ({"obs": np.zeros((2, 2))}, r"column 'obs' has rows \(2, 3\), not \(2,\)"),
    ],
)
def test_a_write_of_other_columns_is_refused_and_changes_nothing(columns, problem):
    store = RingStore(SCHEMA, 10)
    store.insert(block(1, 5))
    before = store.contents()
    with pytest.raises(ValueError, match=problem):
        store.write(np.array([0, 1]), columns)
    np.testing.assert_array_equal(store.contents()["reward"], before["reward"])
