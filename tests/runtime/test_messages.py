import dataclasses
import pickle

import numpy as np
import pytest
from headers import make_block

from drl_cli.runtime import messages
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, LoadParams, MessageCounts, UpdatePriority
from drl_cli.types import Episode

BLOCKS = (
    make_block(30, number=3, first_env_step=96, last_env_step=128, version=7, opt_steps=112),
    make_block(28, worker=1, incarnation=2, last_env_step=32, version=7, opt_steps=112),
)
MESSAGES = [
    InsertTransition(BLOCKS, (Episode(1, -3.5, 20),), 0.25, 1, {1: 2}),
    messages.SampleBatch(16, 256, 3, 2),
    BatchTrainingData(0, 16, 256, 10_000),
    UpdatePriority(0, np.zeros((16, 256), np.int64), np.zeros((16, 256))),
    LoadParams(7, 112, 5000, exploration={"epsilon": 0.5}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_frozen_and_picklable(message):
    assert pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, dataclasses.fields(message)[0].name, None)


def test_rows_and_env_steps_are_sums_over_blocks():
    assert (MESSAGES[0].rows, MESSAGES[0].env_steps, InsertTransition((), (), 0.0).rows) == (58, 64, 0)


def test_message_counts_cover_every_route_and_call_the_observer():
    seen = []
    counts = MessageCounts(lambda route, count, detail: seen.append((route, count, dict(detail))))
    assert set(counts.counts) == set(range(1, 9))
    counts.add(2)
    counts.merge({1: 3, 2: 2})
    counts.add(7, member=1, version=4)
    assert seen == [(2, 1, {}), (1, 3, {}), (2, 2, {}), (7, 1, {"member": 1, "version": 4})]
    assert {route: count for route, count in counts.take().items() if count} == {1: 3, 2: 3, 7: 1}
    assert not any(counts.take().values())
