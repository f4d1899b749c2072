"""TrajectoryManager: blocks in, batches out."""

import numpy as np
import pytest

from drl_cli.replay.samplers import Uniform
from drl_cli.replay.store import RingStore
from drl_cli.runtime.messages import BatchTrainingData, Block, InsertTransition, SampleBatch
from drl_cli.runtime.trajectory_manager import TrajectoryManager
from drl_cli.types import Column


def make(capacity=10, seed=0):
    return TrajectoryManager(RingStore({"id": Column((), "int64")}, capacity), Uniform(np.random.default_rng(seed)))


def message(*sources, rows=4):
    """Blocks from (worker, incarnation, number)."""
    return InsertTransition(tuple(Block(*source, rows, 0, rows, 0, 0) for source in sources), (), 0.0)


def columns(first=0, rows=4):
    return {"id": np.arange(first, first + rows)}


def test_insert_counts_and_sample_fits_the_message():
    manager = make()
    assert manager.insert(message((0, 0, 0)), columns(0)) == 4
    assert manager.insert(message((0, 0, 1)), columns(4)) == 8
    assert manager.insert(message((1, 0, 0)), columns(8)) == 12
    header, batch = manager.sample(SampleBatch(2, 50, 16))
    assert header == BatchTrainingData(2, 50, 16, 12)
    assert batch["id"].shape == (50, 16)
    assert set(np.unique(batch["id"])) == set(range(2, 12))  # 0 and 1 were overwritten


def test_samples_only_rows_that_are_there_and_by_seed():
    batches = []
    for seed in (0, 0, 1):
        manager = make(seed=seed)
        manager.insert(message((0, 0, 0)), columns(100))
        batches.append(manager.sample(SampleBatch(0, 8, 8))[1]["id"])
        assert set(np.unique(batches[-1])) <= set(range(100, 104))
    assert np.array_equal(batches[0], batches[1])
    assert not np.array_equal(batches[0], batches[2])


def test_refuses_to_sample_from_nothing():
    with pytest.raises(ValueError, match="empty replay"):
        make().sample(SampleBatch(0, 1, 1))


def test_refuses_a_block_that_came_before():
    manager = make()
    manager.insert(message((0, 0, 0), (1, 0, 0), rows=2), columns())
    for again in (message((0, 0, 0)), message((2, 0, 0), (1, 0, 0), rows=2)):
        with pytest.raises(ValueError, match="was inserted before"):
            manager.insert(again, columns())
    assert manager.store.inserts == 4
    assert manager.insert(message((0, 1, 0)), columns()) == 8  # a restarted worker counts anew


def test_a_refused_block_does_not_count_as_inserted():
    manager = make()
    with pytest.raises(ValueError, match="replay holds"):
        manager.insert(message((0, 0, 0)), {"other": np.zeros(4)})
    assert manager.insert(message((0, 0, 0)), columns()) == 4


def test_inserted_rows_are_copied():
    manager, rows = make(), columns(5)
    manager.insert(message((0, 0, 0)), rows)
    rows["id"][:] = -1
    assert manager.sample(SampleBatch(0, 4, 4))[1]["id"].min() >= 5
