import dataclasses
import tracemalloc

import numpy as np
import pytest
from frequencies import check_frequencies
from headers import make_block, make_insert

from drl_cli.replay.config import PrioritizedConfig, UniformConfig
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.messages import InsertTransition, SampleBatch, UpdatePriority
from drl_cli.runtime.place.handles import LocalHandle, LocalRef, get
from drl_cli.runtime.roles.trajectory_manager import TrajectoryManager
from drl_cli.types import ActionSpec, Column, EnvSpec, transition_schema

UNIFORM = UniformConfig("uniform", 1000, None, "oldest", "none")
PRIORITIZED = PrioritizedConfig("prioritized", 1000, None, "oldest", "none", "max", 1.0, 0.5, eps=1e-6, uniform_mix=0.0)


def make(config=UNIFORM, num=3, seed=0):
    schema = {"id": Column((), "int64")}
    tables = [config.share(i, num).make_table(schema, np.random.default_rng([seed, i]), 100) for i in range(num)]
    return ReplayShards([LocalHandle(TrajectoryManager(table)) for table in tables], np.random.default_rng(seed))


def insert(shards, number, rows=10):
    block = make_block(rows, number=number, first_env_step=rows * number)
    columns = {"id": np.arange(rows * number, rows * (number + 1))}
    ((answer, blocks),) = shards.insert([InsertTransition((block,), (), 0.0)], [LocalRef(columns)])
    assert blocks == [0]
    return get(answer)


def tables(shards):
    return [handle.role.table for handle in shards.shards]


def test_every_row_goes_to_one_shard_and_the_shards_fill_evenly():
    shards = make()
    assert [table.store.capacity for table in tables(shards)] == [334, 333, 333]
    for number in range(90):
        insert(shards, number)
    assert sum(table.inserts for table in tables(shards)) == 900
    assert all(200 <= table.inserts <= 400 for table in tables(shards))
    held = [set(table.contents()["id"].tolist()) for table in tables(shards)]
    assert sum(len(ids) for ids in held) == len(set().union(*held)) == sum(len(table) for table in tables(shards))


def test_a_shard_gets_its_blocks_in_one_call_and_in_order():
    together, apart = make(), make()
    for number in range(20):
        insert(apart, number)
    headers = [make_insert(10, number=number, first_env_step=10 * number) for number in range(20)]
    columns = [LocalRef({"id": np.arange(10 * number, 10 * (number + 1))}) for number in range(20)]
    answers = together.insert(headers, columns)
    assert sorted(i for _, blocks in answers for i in blocks) == [*range(20)]
    assert (len(answers), together.filled) == (3, {0, 1, 2})
    for one, other in zip(tables(together), tables(apart), strict=True):
        assert np.array_equal(one.contents()["id"], other.contents()["id"])


def test_only_shards_with_rows_are_sampled():
    shards = make()
    insert(shards, 0)
    chosen = {shards.sample(SampleBatch(1, 4))[0] for _ in range(50)}
    assert chosen == shards.filled
    for number in range(1, 60):
        insert(shards, number)
    batches = [shards.sample(SampleBatch(2, 8)) for _ in range(60)]
    assert {shard for shard, _ in batches} == {0, 1, 2}
    for shard, ((_, columns),) in batches:
        assert get(columns)["id"].shape == (2, 8)
        assert set(get(columns)["id"].ravel()) <= set(tables(shards)[shard].contents()["id"])


def test_priorities_return_to_the_shard_of_their_batch():
    shards = make(PRIORITIZED)
    for number in range(60):
        insert(shards, number)
    before = [table.sampler.tree.values.copy() for table in tables(shards)]
    shard, ((header, _),) = shards.sample(SampleBatch(1, 5))
    numbers = get(header).row_ids
    get(shards.update_priorities(shard, LocalRef(UpdatePriority(numbers, np.full(numbers.shape, 7.0)))))
    for index, (table, old) in enumerate(zip(tables(shards), before, strict=True)):
        changed = np.flatnonzero(table.sampler.tree.values != old)
        assert set(changed) == (set(numbers.ravel() % table.store.capacity) if index == shard else set())


def test_each_shard_draws_by_its_priorities():
    shards, rng, late, stale = make(PRIORITIZED), np.random.default_rng(1), [], 0
    value = {}
    for number in range(200):  # 2000 rows in 1000 slots, priorities up to eight batches late
        insert(shards, number)
        shard, ((header, columns),) = shards.sample(SampleBatch(2, 16))
        late.append((shard, get(header).row_ids, get(columns)["id"]))
        if len(late) > 8:
            shard, numbers, ids = late.pop(int(rng.integers(len(late))))
            priorities = np.where(rng.random(ids.shape) < 0.2, 0, rng.uniform(0, 5, ids.shape)).astype(np.float32)
            there = set(tables(shards)[shard].contents()["id"].tolist())
            for id, priority in zip(ids.ravel().tolist(), priorities.ravel().tolist(), strict=True):
                stale += id not in there
                value[id] = priority
            get(shards.update_priorities(shard, LocalRef(UpdatePriority(numbers, priorities))))
    assert sum(table.stats()["stale_priorities"] for table in tables(shards)) == stale > 50
    drawn = [[], [], []]
    for _ in range(300):
        shard, ((_, columns),) = shards.sample(SampleBatch(3400, 1))
        drawn[shard].append(get(columns)["id"][:, 0])
    assert sum(map(len, drawn)) == 300
    for table, ids in zip(tables(shards), drawn, strict=True):
        there, values = table.store.columns["id"], table.sampler.tree.values[: len(table)]
        known = np.array([id in value for id in there.tolist()])
        assert known.sum() > 100
        expected = [value[id] + 1e-6 for id in there[known].tolist()]
        assert values[known] == pytest.approx(expected, rel=1e-6)
        order = np.argsort(there)
        slots = order[np.searchsorted(there[order], np.concatenate(ids))]
        check_frequencies(slots, values / values.sum())


def test_a_batch_is_split_over_trainers_without_changing_it():
    whole, split = make(PRIORITIZED), make(PRIORITIZED)
    for number in range(30):
        insert(whole, number)
        insert(split, number)
    _, ((header, columns),) = whole.sample(SampleBatch(3, 8))
    _, parts = split.sample(SampleBatch(3, 8, num_trainers=2))
    headers, halves = ([get(ref) for ref in part] for part in zip(*parts, strict=True))
    assert [(part.num_batches, part.row_ids.shape) for part in headers] == [(3, (3, 4))] * 2
    for name, column in get(columns).items():
        assert np.array_equal(column, np.concatenate([half[name] for half in halves], 1))
    assert np.array_equal(get(header).row_ids, np.concatenate([part.row_ids for part in headers], 1))


@pytest.mark.parametrize("config", [UNIFORM, PRIORITIZED], ids=lambda config: config.sampler)
def test_many_rows_need_no_more_memory_than_the_tables_allocate(config):
    """Rows pass through three shards ten times over, while the peak of new allocations is measured."""
    rows, capacity = 500, 20_000
    config = dataclasses.replace(config, capacity=capacity)
    schema = transition_schema(EnvSpec("x", Column((8,), "float32"), ActionSpec("box", 2, "Box(2,)")))
    rng = np.random.default_rng(0)
    block = {name: rng.random((rows, *c.shape)).astype(c.dtype) for name, c in schema.items()}
    tracemalloc.start()
    try:
        made = [config.share(i, 3).make_table(schema, np.random.default_rng(i), 4000) for i in range(3)]
        shards = ReplayShards([LocalHandle(TrajectoryManager(table)) for table in made], rng)
        for number in range(10 * capacity // rows):
            shards.insert([make_insert(rows, number=number)], [LocalRef(block)])
            shard, ((header, _),) = shards.sample(SampleBatch(2, 256))
            if (numbers := get(header).row_ids) is not None:
                get(shards.update_priorities(shard, LocalRef(UpdatePriority(numbers, rng.random(numbers.shape)))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(table.inserts for table in made) == 10 * capacity
    assert sum(len(table) for table in made) == capacity
    assert peak <= 1.05 * sum(table.nbytes for table in made) + 2**20
