"""Messages: frozen, picklable headers and the counts of their routes."""

import dataclasses
import pickle

import numpy as np
import pytest

from drl_cli.runtime.messages import (
    BatchTrainingData,
    Block,
    InsertTransition,
    LoadParams,
    SampleBatch,
    Trace,
    UpdatePriority,
)
from drl_cli.types import Episode

BLOCKS = (Block(0, 0, 3, 30, 96, 128, 7, 112), Block(1, 2, 0, 28, 0, 32, 7, 112))
MESSAGES = [
    InsertTransition(BLOCKS, (Episode(1, -3.5, 20),), 0.25, 1, {1: 2}),
    SampleBatch(16, 256, 3, 2),
    BatchTrainingData(0, 16, 256, 10_000),
    UpdatePriority(0, np.zeros((16, 256), np.int64), np.zeros((16, 256))),
    LoadParams(7, 112, 5000, exploration={"epsilon": 0.5}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_frozen_and_picklable(message):
    assert pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, dataclasses.fields(message)[0].name, None)


def test_the_numbers_and_priorities_of_rows_travel_along():
    row_ids = np.array([[5, 2**40]])
    header = pickle.loads(pickle.dumps(BatchTrainingData(0, 1, 2, 9, row_ids)))
    update = pickle.loads(pickle.dumps(UpdatePriority(0, row_ids, np.array([[0.5, 2.0]]))))
    assert header.row_ids.tolist() == update.row_ids.tolist() == [[5, 2**40]]
    assert update.priorities.tolist() == [[0.5, 2.0]]


def test_rows_and_env_steps_are_sums_over_blocks():
    assert MESSAGES[0].rows == 58
    assert MESSAGES[0].env_steps == 64
    assert InsertTransition((), (), 0.0).rows == 0


def test_trace_counts_every_route_and_tells_its_observer():
    seen = []
    trace = Trace(lambda route, count, detail: seen.append((route, count, dict(detail))))
    assert set(trace.counts) == set(range(1, 9))
    trace.add(2)
    trace.merge({1: 3, 2: 2})
    trace.add(7, member=1, version=4)
    assert seen == [(2, 1, {}), (1, 3, {}), (2, 2, {}), (7, 1, {"member": 1, "version": 4})]
    assert {route: count for route, count in trace.take().items() if count} == {1: 3, 2: 3, 7: 1}
    assert not any(trace.take().values())
