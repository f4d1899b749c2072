import time

import numpy as np
import pytest
from frequencies import check_frequencies

from drl_cli.replay.samplers import FadedTree, SumTree, faded_tree_bytes
from drl_cli.replay.store import RingStore
from drl_cli.types import Column


class Slow:
    """The faded values of all slots, from the list of all inserted slots."""

    def __init__(self, capacity, age_factor):
        self.values, self.age_factor, self.inserted = [0.0] * capacity, age_factor, []

    def faded(self):
        age = {slot: len(self.inserted) - 1 - number for number, slot in enumerate(self.inserted)}  # of the last insert
        factors = [min(1.0, max(0.1, self.age_factor ** age.get(slot, 0))) for slot in range(len(self.values))]
        return np.array([value * factor for value, factor in zip(self.values, factors, strict=True)])


def grown(capacity, age_factor, inserts, seed=0):
    """Return a tree and its reference, after inserts in blocks and changes of values between them."""
    rng = np.random.default_rng(seed)
    store, slow = RingStore({"x": Column((), "float32")}, capacity), Slow(capacity, age_factor)
    tree = FadedTree(store, age_factor)
    while store.inserts < inserts:
        count = int(rng.integers(0, min(7, capacity + 1, inserts - store.inserts + 1)))
        slots = store.insert({"x": np.zeros(count, np.float32)})
        slow.inserted += slots.tolist()
        changed = rng.integers(0, len(store), 3) if len(store) else slots
        for some in (slots, changed):
            values = 10 ** rng.uniform(-2, 2, len(some))
            tree.set(some, values)
            for slot, value in zip(some.tolist(), values.tolist(), strict=True):
                slow.values[slot] = value
            assert tree.total == pytest.approx(slow.faded().sum(), rel=1e-12)
    return tree, slow


SIZES = [(5, 2), (40, 17), (40, 40), (40, 117), (300, 777)]


@pytest.mark.parametrize("age_factor", [0.5, 0.97, 0.9999])
@pytest.mark.parametrize(("capacity", "inserts"), SIZES)
def test_values_and_total_equal_their_definition(capacity, inserts, age_factor):
    tree, slow = grown(capacity, age_factor, inserts)
    slots = np.arange(len(tree.store)).reshape(1, -1)
    np.testing.assert_allclose(tree.take(slots)[0], slow.faded()[: slots.size], rtol=1e-12)
    np.testing.assert_allclose(tree.values, slow.values)  # without factors, from which a new row takes the largest


@pytest.mark.parametrize("age_factor", [0.5, 0.97, 0.9999])
@pytest.mark.parametrize(("capacity", "inserts"), SIZES)
def test_draws_are_in_proportion_to_the_faded_values(capacity, inserts, age_factor):
    tree, slow = grown(capacity, age_factor, inserts)
    mass = np.random.default_rng(1).random((1000, 400)) * tree.total
    before, expected = mass.copy(), slow.faded()[: len(tree.store)]
    slots = tree.find(mass)
    assert slots.shape == mass.shape
    assert np.array_equal(mass, before)
    check_frequencies(slots, expected / expected.sum())


@pytest.mark.parametrize("end", ["first", "last"])
def test_the_ends_of_the_masses_find_rows_of_the_table(end):
    for seed in range(50):
        tree, _ = grown(40, 0.9, 30 + seed, seed)
        mass = np.array([0.0 if end == "first" else np.nextafter(tree.total, 0.0), tree.total * (1 + 1e-15)])
        slots = tree.find(mass)
        assert (slots >= 0).all()
        assert (slots < len(tree.store)).all()


def test_a_draw_from_a_large_table_is_fast():
    """With DR.Q's factor, 23,025 rows are newer than the floor. An update of MR.Q takes milliseconds."""
    store = RingStore({"x": Column((), "uint8")}, 300_000)
    tree, plain = FadedTree(store, 0.9999), SumTree(300_000)
    slots = store.insert({"x": np.zeros(300_000, np.uint8)})
    seconds = []
    for _ in range(20):
        for each in (tree, plain):
            each.set(slots[:128], 1.0) if len(seconds) else each.set(slots, 1.0)
        start = time.process_time()
        tree.find(np.arange(128) / 128 * tree.total)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 5e-3
    assert tree.nbytes == faded_tree_bytes(300_000, 0.9999)
    assert plain.nbytes < tree.nbytes < plain.nbytes + 4e5
