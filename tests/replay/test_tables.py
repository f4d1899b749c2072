"""Tables: after a long history, batches and weights equal those of a reference implementation."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import replays
from frequencies import check_frequencies

import drl_cli
from drl_cli.replay.builders import mix
from drl_cli.replay.config import SAMPLERS, PrioritizedConfig, UniformConfig
from drl_cli.replay.tables import SequenceTable
from drl_cli.types import Column, num_rows

SCHEMA = {"id": Column((), "int64")}
UNIFORM = UniformConfig("uniform", 777, None, "oldest", "none")
PRIORITIZED = PrioritizedConfig(
    "prioritized", 777, None, "oldest", "none", "max", 0.6, beta=0.4, eps=1e-6, uniform_mix=0.1
)
SEQUENCES = PrioritizedConfig(
    "sequences", 60, None, "oldest", "none", "max", 1.0, beta=0.4, eps=1e-9, uniform_mix=0.0,
    rows="sequences", seq_len=4, burn_in=2, overlap=1, eta=0.9,
)  # fmt: skip


class Reference:
    """A reference that keeps powers of priorities by id, and the ids in the table, but no slots."""

    def __init__(self, config):
        self.config, self.value, self.there, self.stale = config, {}, [], 0

    def power(self, priority):
        return (float(np.float32(priority)) + self.config.eps) ** self.config.alpha

    def insert(self, ids, there, given):
        largest = max((self.value[i] for i in self.there), default=1.0)
        for k, i in enumerate(ids):
            self.value[i] = largest if given is None else self.power(given[k])
        self.there = there

    def update(self, ids, priorities):
        there = set(self.there)
        for i, priority in zip(ids.ravel().tolist(), priorities.ravel(), strict=True):
            if i in there:
                self.value[i] = self.power(priority)
            else:
                self.stale += 1

    def probabilities(self):
        values = np.array([self.value[i] for i in self.there])
        return (1 - self.config.uniform_mix) * values / values.sum() + self.config.uniform_mix / len(values)


def some_priorities(rng, shape):
    """Return priorities over four powers of ten; about every seventh is 0."""
    return np.where(rng.random(shape) < 1 / 7, 0.0, 10.0 ** rng.uniform(-2, 2, shape)).astype(np.float32)


def history(config, blocks=60, seed=0):
    """Return a table after several turns of inserts, with priorities up to ten blocks late, and its reference."""
    rng, table, reference = np.random.default_rng(seed), None, Reference(config)
    table = config.make_table(SCHEMA, np.random.default_rng(seed + 1), 10**9)
    late, total = [], 0
    for number in range(blocks):
        count = int(rng.integers(1, 120))
        rows = {"id": np.arange(total, total + count)}
        given = some_priorities(rng, count) if config.initial_priority == "worker" else None
        table.insert(rows if given is None else rows | {"priority": given}, np.zeros(count, np.int64))
        total += count
        newest = list(range(max(0, total - config.capacity), total))
        there = newest if config.remover == "oldest" else table.contents()["id"].tolist()
        reference.insert(rows["id"].tolist(), there, given)
        drawn = table.sample(3, 64, 0)
        late.append((drawn.row_ids, drawn.columns["id"]))
        if number % 3 == 2:
            row_ids, ids = late.pop(int(rng.integers(len(late))))
            priorities = some_priorities(rng, ids.shape)
            table.update_priorities(row_ids, priorities)
            reference.update(ids, priorities)
    assert total > 3 * config.capacity
    return table, reference


@pytest.mark.parametrize("initial", ["max", "worker"])
@pytest.mark.parametrize("remover", ["oldest", "random"])
def test_a_million_draws_and_their_weights_after_a_long_history(remover, initial):
    config = dataclasses.replace(PRIORITIZED, remover=remover, initial_priority=initial)
    table, reference = history(config)
    assert sorted(table.contents()["id"]) == sorted(reference.there)
    stats = table.stats()
    assert stats["stale_priorities"] == reference.stale > 100
    assert stats["bad_priorities"] == 0
    position = {id: k for k, id in enumerate(reference.there)}
    drawn, expected = table.sample(1_000_000, 1, 0), reference.probabilities()
    check_frequencies(np.array([position[id] for id in drawn.columns["id"][:, 0].tolist()]), expected)
    drawn = table.sample(20, 32, 0)
    beta = table.sampler.beta(table.sampler.drawn - 20 + np.arange(20))
    for ids, weights, b in zip(drawn.columns["id"].tolist(), drawn.columns["weight"], beta, strict=True):
        wanted = np.array([(777 * expected[position[id]]) ** -b for id in ids])
        np.testing.assert_allclose(weights, wanted / wanted.max(), rtol=1e-5)


@pytest.mark.parametrize("remover", ["oldest", "random"])
def test_uniform_tables_sample_all_rows_equally(remover):
    table = dataclasses.replace(UNIFORM, remover=remover).make_table(SCHEMA, np.random.default_rng(0), 1)
    for first in range(0, 3000, 100):
        table.insert({"id": np.arange(first, first + 100)}, np.zeros(100, np.int64))
    there, drawn = np.sort(table.contents()["id"]), table.sample(1_000_000, 1, 0)
    assert drawn.row_ids is None
    assert len(np.unique(there)) == 777
    check_frequencies(np.searchsorted(there, drawn.columns["id"]), np.full(777, 1 / 777))


# Sequences


def sequence_rows(first, mask):
    """Return sequences whose steps hold the number of their row."""
    ids = np.arange(first, first + len(mask))
    return {"id": np.broadcast_to(ids[:, None], mask.shape), "valid": mask}


def some_masks(rng, count):
    """Return random `valid` columns of 2 burn-in and 4 learned steps; the first learned step is valid."""
    mask = rng.random((count, 6)) < 0.7
    mask[:, 2] = True
    return mask


def test_sequences_count_transitions_and_mix_priorities():
    rng, table = np.random.default_rng(0), SEQUENCES.make_table(SCHEMA, np.random.default_rng(0), 100)
    assert isinstance(table, SequenceTable)
    masks = some_masks(rng, 30)
    for first in (0, 10, 20):  # 60 transitions are 20 rows of 3 new ones
        table.insert(sequence_rows(first, masks[first : first + 10]), np.zeros(17, np.int64))
    assert (table.inserts, len(table), table.store.capacity) == (51, 20, 20)
    drawn = table.sample(5, 8, 0)
    ids = drawn.columns["id"][:, :, 0]
    assert np.array_equal(drawn.row_ids, ids)
    assert np.array_equal(drawn.columns["valid"], masks[ids])
    assert set(np.unique(ids)) <= set(range(10, 30))
    table.insert(sequence_rows(30, masks[:5]), np.zeros(5, np.int64))  # in the slots of rows 10 ... 14
    errors = rng.uniform(0, 9, (5, 8, 4)).astype(np.float32)
    table.update_priorities(drawn.row_ids, np.where(masks[ids][:, :, 2:], errors, np.nan))
    values = {}
    for id, error in zip(ids.ravel().tolist(), errors.reshape(-1, 4), strict=True):
        values[id] = mix(error[None], masks[id][None, 2:], 0.9)[0]
    expected = [values.get(id, 1.0) for id in range(15, 30)]
    assert table.sampler.tree.values[np.arange(15, 30) % 20] == pytest.approx(expected, rel=1e-6)
    assert table.sampler.tree.values[10:15] == pytest.approx(1.0)
    assert table.stats()["stale_priorities"] == (ids < 15).sum() > 0
    assert (table.stats()["sequences"], table.stats()["bad_priorities"]) == (20, 0)


def test_initial_priorities_of_sequences_are_mixed():
    table = SEQUENCES.make_table(SCHEMA, np.random.default_rng(0), 100)
    masks = some_masks(np.random.default_rng(1), 9)
    errors = np.random.default_rng(2).uniform(0, 9, (9, 4)).astype(np.float32)
    table.insert(sequence_rows(0, masks) | {"priority": errors}, np.zeros(9, np.int64))
    assert table.sampler.tree.values[:9] == pytest.approx(mix(errors, masks[:, 2:], 0.9), rel=1e-6)


@pytest.mark.parametrize("config", [UNIFORM, PRIORITIZED, SEQUENCES], ids=lambda config: config.sampler)
def test_bytes_are_known_before_allocation(config):
    table = config.make_table(SCHEMA, np.random.default_rng(0), 1)
    assert (config.table_bytes(SCHEMA), num_rows(table.store.columns)) == (table.nbytes, config.num_rows)


def test_the_size_of_a_row_does_not_depend_on_the_reserved_rows():
    sizes = {UNIFORM.make_table(SCHEMA, np.random.default_rng(0), 1, most).row_nbytes for most in (None, 7)}
    assert sizes == {8}


def test_no_other_room_asks_for_the_class_of_a_tables_config():
    package = Path(drl_cli.__file__).parent
    names = {kind.__name__ for kind in SAMPLERS.values()}
    files = [file for file in package.rglob("*.py") if file.parent != package / "replay"]
    assert not [(file, name) for file in files for name in names if name in file.read_text()]


def test_writes_skip_rows_that_were_overwritten():
    table = replays.make("uniform")
    table.returns_ids = True
    source = replays.Source("uniform")
    table.insert(*source.block(30))
    ids = table.sample(1, 20, 0).row_ids
    table.insert(*source.block(20))  # overwrites the first 10 rows
    table.write(ids, {"obs": np.full((1, 20, 3), 7.0)})
    rows = table.contents()
    written = set(rows["id"][(rows["obs"] == 7.0).all(-1)].tolist())
    assert written == {row for row in ids.ravel().tolist() if row >= 10}
    with pytest.raises(ValueError, match="FifoTable can't be changed"):
        replays.make("fifo").write(ids, {})
    with pytest.raises(ValueError, match="images can't be changed: obs"):
        replays.make("frames").write(ids, {"obs": np.zeros(1)})
