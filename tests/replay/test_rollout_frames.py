"""On-policy batches of image stacks: each frame once in the block, in the table and in the batch."""

import numpy as np
import pytest
import torch
from images import ImageSteps, image_spec

from drl_cli.replay.builders import RolloutBuilder
from drl_cli.replay.fifo import FifoTable
from drl_cli.replay.frame_builder import FrameBuilder
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import UNIQUE, batch_part, make_codec, make_stackings
from drl_cli.replay.snapshot import Snapshot
from drl_cli.replay.stacks import FrameBatch, Stacks, take, unjoined
from drl_cli.types import Column, transition_schema

FRAME = 84 * 84


class Rollouts:
    """Feeds the steps of environments to a table of frames, and to a table of whole stacks."""

    def __init__(self, spec, num_envs=2, seed=0, **options):
        self.stackings, self.codec = make_stackings(spec), make_codec("none")
        self.steps = ImageSteps(spec, num_envs, np.random.default_rng(seed), **options)
        self.plain, inner = RolloutBuilder(0.9), RolloutBuilder(0.9)
        self.builder = FrameBuilder(inner, self.stackings, self.codec, 0, 0, 0)
        schema = transition_schema(spec, {"cut": Column((), "bool")})
        framed = FifoTable(reference_schema(schema, self.stackings), 4096, 1)
        self.tables = FrameTable(framed, self.stackings, self.codec, shares_frames=True), FifoTable(schema, 4096, 1)

    def collect(self, num_steps):
        for _ in range(num_steps):
            step = self.steps.step()
            self.plain.append({name: column.copy() for name, column in step.items()})
            self.builder.append(step)
        blocks = self.builder.take(), self.plain.take()
        for table, block in zip(self.tables, blocks, strict=True):
            table.insert(block, np.zeros(len(block["reward"]), np.int64))
        return blocks

    def batch(self, columns):
        rows = {name: torch.tensor(column[0]) for name, column in columns.items() if name != UNIQUE}
        frames = torch.tensor(columns[UNIQUE])
        stacks = {name: Stacks(frames, rows[name], self.stackings[""]) for name in ("obs", "next_obs")}
        return FrameBatch(rows | stacks)


def nbytes(columns):
    return sum(column.nbytes for column in columns.values())


def check_equal(batch, expected):
    for name, column in expected.items():
        found = batch[name]
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.numpy(), column)


def test_a_row_takes_one_frame_in_the_block_the_table_and_the_batch():
    """At most 1.3 frames per row, where whole stacks take 8: 8 environments with 32 steps each."""
    rollouts = Rollouts(image_spec(0, 4, (84, 84)), num_envs=8, p_end=0.02, p_break=0.0)
    block, plain = rollouts.collect(32)
    framed = rollouts.tables[0]
    assert nbytes(plain) > 8 * FRAME * 256
    assert nbytes(block) < 1.3 * FRAME * 256
    held = framed.nbytes - framed.store.nbytes  # the store also has the slots of rows that are not there yet
    assert FRAME * 256 < held < 1.3 * FRAME * 256
    assert framed.store.nbytes < 0.02 * FRAME * framed.store.capacity
    columns = framed.sample(1, 256, 0).columns
    assert FRAME * 256 < nbytes(columns) < 1.3 * FRAME * 256
    assert framed.nbytes == framed.store.nbytes  # the frames of rows that were learned from are free
    assert {id(frame) for name in ("obs", "next_obs") for frame in framed.store.columns[name][:256].flat} == {id(b"")}


@pytest.mark.parametrize(("axis", "k", "channels"), [(0, 4, 1), (-1, 3, 2), (-1, 1, 3)])
def test_batches_equal_those_of_whole_stacks(axis, k, channels):
    rollouts = Rollouts(image_spec(axis, k, channels=channels), num_envs=3, p_fail=0.1)
    for _ in range(6):
        rollouts.collect(5)
        while len(rollouts.tables[0]) >= 7:
            framed, plain = (table.sample(1, 7, 0).columns for table in rollouts.tables)
            expected = {name: column[0] for name, column in plain.items()}
            batch = rollouts.batch(framed)
            check_equal(batch, expected)
            rows = torch.tensor([[3, 0], [6, 3]])
            check_equal(take(batch, rows), {name: column[rows] for name, column in expected.items()})
    assert len(rollouts.tables[0]) == len(rollouts.tables[1])


def test_each_trainer_gets_the_frames_of_its_rows():
    rollouts = Rollouts(image_spec(0, 4), num_envs=2)
    rollouts.collect(10)
    framed, plain = (table.sample(1, 20, 0).columns for table in rollouts.tables)
    for part in (slice(0, 10), slice(10, 20)):
        mine = batch_part(framed, part)
        check_equal(rollouts.batch(mine), {name: column[0, part] for name, column in plain.items()})
        assert len(mine[UNIQUE]) == len(np.unique(np.concatenate([mine["obs"], mine["next_obs"]])))
        assert len(mine[UNIQUE]) < 0.8 * len(framed[UNIQUE])


def test_reading_a_column_joins_only_this_column():
    rollouts = Rollouts(image_spec(0, 4))
    rollouts.collect(4)
    batch = rollouts.batch(rollouts.tables[0].sample(1, 8, 0).columns)
    joined = []
    for name in ("obs", "next_obs"):
        stacks = batch.columns[name]
        stacks.joined = lambda name=name, real=stacks.joined: [joined.append(name), real()][1]
    more = batch | {"weight": torch.ones(8)}
    assert "obs" in more
    assert "missing" not in more
    assert len(more) == len(batch) + 1
    assert torch.equal(more["weight"], torch.ones(8))
    unjoined(more)
    assert joined == []
    assert more["obs"].shape == (8, 4, 3, 2)
    assert joined == ["obs"]


def test_a_snapshot_keeps_frames_that_are_served_while_it_is_saved():
    rollouts = Rollouts(image_spec(0, 4))
    rollouts.collect(4)
    table = rollouts.tables[0]
    snapshot, before = Snapshot(table.store, 4, [0, 1]), table.store.columns["obs"][:8].copy()
    served = table.sample(1, 6, 0)
    assert served.num_batches == 1
    assert [snapshot.take(chunk)["obs"].tolist() for chunk in (0, 1)] == [before[:4].tolist(), before[4:].tolist()]
    packed = table.pack(table.store.take(np.arange(8)))  # served rows without frames, and two that wait
    (rows,) = table.unpack([packed])
    assert (rows["obs"][:6] == b"").all()
    assert rows["obs"][6:].tolist() == before[6:].tolist()
