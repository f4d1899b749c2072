import numpy as np
import pytest
from headers import make_block

from drl_cli.replay.samplers import Prioritized, Uniform
from drl_cli.replay.store import RingStore
from drl_cli.replay.tables import ReplayTable
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch, UpdatePriority
from drl_cli.runtime.roles import trajectory_manager as module
from drl_cli.runtime.roles.trajectory_manager import TrajectoryManager
from drl_cli.types import Column


def make(capacity=10, seed=0):
    store = RingStore({"id": Column((), "int64")}, capacity)
    return TrajectoryManager(ReplayTable(store, Uniform(np.random.default_rng(seed))))


def make_prioritized(capacity=10):
    sampler = Prioritized(np.random.default_rng(0), capacity, 100, alpha=1.0, beta=0.5, eps=1e-6, uniform_mix=0.0)
    return TrajectoryManager(ReplayTable(RingStore({"id": Column((), "int64")}, capacity), sampler))


def message(*sources, rows=4):
    names = ("worker", "incarnation", "number")
    blocks = tuple(make_block(rows, **dict(zip(names, source, strict=True))) for source in sources)
    return InsertTransition(blocks, (), 0.0)


def columns(first=0, rows=4):
    return {"id": np.arange(first, first + rows)}


def test_several_messages_are_inserted_in_order_and_one_that_is_repeated_is_refused():
    manager, apart = make(), make()
    manager.insert([message((0, 0, 0)), message((1, 0, 0))], columns(0), columns(4))
    assert manager.table.inserts == 8
    apart.insert([message((0, 0, 0))], columns(0))
    apart.insert([message((1, 0, 0))], columns(4))
    assert np.array_equal(manager.contents()["id"], apart.contents()["id"])
    assert manager.last_block == apart.last_block
    with pytest.raises(ValueError, match="block 0 of worker 1 was inserted before"):
        manager.insert([message((1, 0, 0))], columns(8))
    with pytest.raises(ValueError, match="zip"):
        manager.insert([message((0, 0, 1)), message((1, 0, 1))], columns(8))


def test_a_batch_header_has_origin_and_time(monkeypatch):
    moments = iter([100.0, 103.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(moments))
    manager = make()
    assert (manager.shard, manager.layout, manager.num_shards, manager.moments) == (0, None, 1, None)
    manager.insert([message((0, 0, 0))], columns())
    header, _ = manager.sample(SampleBatch(2, 4, version=3, env_steps=77))
    assert (header.seconds, header.version, header.env_steps, header.shard) == (3.0, 3, 77, 0)
    assert (header.waiting, header.repeats, dict(header.stats), header.moments) == (0, 0, {}, None)


def test_a_repeated_block_is_refused():
    manager = make()
    manager.insert([message((0, 0, 0), (1, 0, 0), rows=2)], columns())
    for again in (message((0, 0, 0)), message((2, 0, 0), (1, 0, 0), rows=2)):
        with pytest.raises(ValueError, match="was inserted before"):
            manager.insert([again], columns())
    assert manager.table.inserts == 4
    manager.insert([message((0, 1, 0))], columns())  # a restarted worker counts anew
    assert manager.table.inserts == 8


def test_a_refused_block_does_not_count_as_inserted():
    manager = make()
    with pytest.raises(ValueError, match="replay holds"):
        manager.insert([message((0, 0, 0))], {"other": np.zeros(4)})
    manager.insert([message((0, 0, 0))], columns())
    assert manager.table.inserts == 4


def test_prioritized_batches_have_weights_and_the_numbers_of_their_rows():
    manager = make_prioritized()
    for number in range(4):  # 16 rows in 10 slots
        manager.insert([message((0, 0, number))], columns(4 * number))
    header, batch = manager.sample(SampleBatch(3, 8))
    assert set(batch) == {"id", "weight"}
    assert (batch["weight"].dtype, batch["weight"].shape) == (np.float32, (3, 8))
    assert header == BatchTrainingData(3)
    assert header.row_ids.tolist() == batch["id"].tolist()  # row 12 was inserted as the 12th, whatever its slot
    uniform = make()
    uniform.insert([message((0, 0, 0))], columns())
    header, batch = uniform.sample(SampleBatch(3, 8))
    assert set(batch) == {"id"}
    assert header.row_ids is None


def test_read_only_messages_are_accepted():
    manager = make_prioritized()
    manager.insert([message((0, 0, 0))], columns())
    header, _ = manager.sample(SampleBatch(2, 4))
    priorities = np.full((2, 4), 3.0, np.float32)
    header.row_ids.flags.writeable = priorities.flags.writeable = False
    manager.update_priorities(UpdatePriority(header.row_ids, priorities))
    rated = manager.table.sampler.tree.values[np.unique(header.row_ids)]
    assert rated == pytest.approx(np.full(len(rated), 3.0), rel=1e-5)
