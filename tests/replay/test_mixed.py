"""MixedTable: a fixed share of every batch is recorded, and priorities, columns and state reach the right table."""

import numpy as np
import pytest

from drl_cli.replay.samplers import Prioritized, Uniform
from drl_cli.replay.store import RingStore
from drl_cli.replay.tables import RECORDED, MixedTable, ReplayTable, recorded_rows
from drl_cli.types import Column

SCHEMA = {"value": Column((), "float32")}


def table(first, rows, prioritized=False, seed=0):
    rng = np.random.default_rng(seed)
    sampler = Prioritized(rng, 50, 100, 1.0, 0.4, 1e-6, 0.0) if prioritized else Uniform(rng)
    made = ReplayTable(RingStore(SCHEMA, 50), sampler)
    made.insert({"value": np.arange(first, first + rows, dtype=np.float32)}, np.zeros(rows, np.int64))
    return made


def mixed(share=0.25, **options):
    return MixedTable(table(0, 20, seed=1, **options), table(1000, 30, seed=2, **options), share)


@pytest.mark.parametrize(("share", "size", "recorded"), [(0.5, 16, 8), (0.25, 16, 4), (0.3, 10, 3), (0.01, 100, 1)])
def test_the_share_is_held_exactly_in_every_batch(share, size, recorded):
    assert recorded_rows(size, share) == recorded
    drawn = mixed(share).sample(7, size, 0)
    assert drawn.columns["value"].shape == (7, size)
    np.testing.assert_array_equal((drawn.columns["value"] >= 1000).sum(1), recorded)


def test_new_rows_go_to_the_runs_own_table():
    made = mixed()
    made.insert({"value": np.arange(20, 25, dtype=np.float32)}, np.zeros(5, np.int64))
    assert (len(made), made.inserts, len(made.recorded)) == (25, 25, 30)
    assert made.contents()["value"].tolist() == list(range(25))
    assert made.stats()["recorded_rows"] == 30


def test_priorities_go_to_the_tables_of_their_rows():
    made, ids = mixed(0.5, prioritized=True), np.array([[3, RECORDED + 7]])
    made.update_priorities(np.array([[*range(20), *(RECORDED + i for i in range(30))]]), np.full((1, 50), 1e-9))
    made.update_priorities(ids, np.array([[5.0, 5.0]]))
    drawn = made.sample(4, 10, 0)
    assert set(drawn.columns["value"][:, :5].ravel()) == {3.0}
    assert set(drawn.columns["value"][:, 5:].ravel()) == {1007.0}
    np.testing.assert_array_equal(drawn.row_ids, np.tile([3] * 5 + [RECORDED + 7] * 5, (4, 1)))
    assert drawn.columns["weight"].shape == (4, 10)


def test_steps_of_windows_go_to_the_tables_of_their_windows():
    made, steps = mixed(0.5, prioritized=True), np.arange(3)
    asked = {}
    for name in ("own", "recorded"):
        table = getattr(made, name)
        table.update_priorities = lambda ids, priorities, name=name: asked.update({name: (ids, priorities)})
    own, recorded = np.array([4, 5, -1]), np.array([RECORDED + 1, RECORDED + 2, -1])
    made.update_priorities(np.array([[own, recorded]]), np.array([[steps, steps + 3.0]]))
    assert [array.tolist() for array in asked["own"]] == [[[4, 5, -1]], [[0.0, 1.0, 2.0]]]
    assert [array.tolist() for array in asked["recorded"]] == [[[1, 2, -1]], [[3.0, 4.0, 5.0]]]


def test_columns_are_written_to_the_tables_of_their_rows():
    made = mixed()
    made.own.returns_ids = made.recorded.returns_ids = True
    drawn = made.sample(2, 8, 0)
    made.write(drawn.row_ids, {"value": drawn.columns["value"] + 0.5})
    changed = {float(value) for part in (made.own, made.recorded) for value in part.contents()["value"] if value % 1}
    assert changed == {float(value) + 0.5 for value in drawn.columns["value"].ravel()}


@pytest.mark.parametrize("prioritized", [False, True])
def test_it_goes_on_from_its_state_bit_for_bit(prioritized):
    made, other = mixed(prioritized=prioritized), mixed(prioritized=prioritized)
    drawn = made.sample(3, 8, 0)
    if prioritized:
        made.update_priorities(drawn.row_ids, np.random.default_rng(3).random((3, 8)))
    other.load_state({name: np.copy(array) for name, array in made.state().items()})
    for _ in range(2):
        first, second = made.sample(3, 8, 0), other.sample(3, 8, 0)
        for name, column in first.columns.items():
            np.testing.assert_array_equal(column, second.columns[name])
