"""FrameBuilder and FrameTable return exactly the rows of a builder and a table of whole images."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from images import ImageSteps, image_spec

from drl_cli.replay.builders import NStepBuilder, RolloutBuilder, SequenceBuilder
from drl_cli.replay.config import PrioritizedConfig, UniformConfig
from drl_cli.replay.fifo import FifoTable
from drl_cli.replay.frame_table import FrameTable, frame_bytes, reference_schema
from drl_cli.replay.frames import (
    UNIQUE,
    FrameBatch,
    FrameBuilder,
    Stacking,
    Stacks,
    batch_part,
    make_codec,
    make_stackings,
    take,
    unjoined,
)
from drl_cli.replay.store import Snapshot
from drl_cli.types import Column, FrameStack, num_rows, transition_schema

CODECS = ("none", "lz4")


class Pair:
    """Feeds the steps of a worker to a FrameBuilder and to a plain builder."""

    def __init__(self, spec, n_step, codec, steps, worker=0, sampler="uniform"):
        self.steps = steps
        is_sequences = sampler == "sequences"
        self.plain, inner = (
            SequenceBuilder(4, 2, 1, 0.9) if is_sequences else NStepBuilder(n_step, 0.9) for _ in range(2)
        )
        stackings, open_steps = make_stackings(spec), 6 if is_sequences else n_step - 1
        self.frames = FrameBuilder(inner, stackings, codec, worker, 0, open_steps)

    def collect(self, num_steps):
        """Return a block, and the rows that it has to give."""
        for _ in range(num_steps):
            step = self.steps.step()
            self.plain.append({name: column.copy() for name, column in step.items()})
            self.frames.append(step)
        return self.frames.take(), self.plain.take()


def make_config(capacity, sampler="uniform", remover="oldest"):
    options = (0.6, 0.4, 1e-6, 0.1)
    if sampler == "sequences":
        return PrioritizedConfig(
            sampler, capacity, 1, remover, "none", "max", *options, rows="sequences", seq_len=4, burn_in=2, overlap=1
        )
    if sampler == "prioritized":
        return PrioritizedConfig(sampler, capacity, 1, remover, "none", "max", *options)
    return UniformConfig(sampler, capacity, 1, remover, "none")


def make_tables(spec, codec, capacity, sampler="uniform", remover="oldest", seed=0):
    """Return a table of frames, and the table of whole images that it has to equal."""
    config, schema = make_config(capacity, sampler, remover), transition_schema(spec)
    inner = config.make_table(reference_schema(schema, make_stackings(spec)), np.random.default_rng(seed), 100)
    plain = config.make_table(schema, np.random.default_rng(seed), 100)
    return FrameTable(inner, make_stackings(spec), codec), plain


def merge(blocks):
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def insert(tables, collected):
    (block, rows), versions = collected, np.zeros(num_rows(collected[1]), np.int64)
    for table, columns in zip(tables, (block, rows), strict=True):
        table.insert(columns, versions)


def check_equal(columns, expected):
    assert columns.keys() == expected.keys()
    for name, column in columns.items():
        assert column.dtype == expected[name].dtype
        assert column.flags.c_contiguous
        np.testing.assert_array_equal(column, expected[name])


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    axis=st.sampled_from([0, -1]),
    k=st.integers(1, 4),
    channels=st.integers(1, 2),
    n_step=st.integers(1, 5),
    num_workers=st.integers(1, 3),
    num_envs=st.integers(1, 3),
    capacity=st.integers(300, 400),
    blocks=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=40),
    merged=st.booleans(),
    shards=st.integers(1, 2),
    greys=st.sampled_from([2, 256]),
    p_end=st.sampled_from([0.02, 0.2, 0.7]),
    p_fail=st.sampled_from([0.0, 0.1, 0.5]),
    compress=st.sampled_from(CODECS),
    sampler=st.sampled_from(["uniform", "prioritized", "sequences"]),
    remover=st.sampled_from(["oldest", "random"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_plain_table(
    axis,
    k,
    channels,
    n_step,
    num_workers,
    num_envs,
    capacity,
    blocks,
    merged,
    shards,
    greys,
    p_end,
    p_fail,
    compress,
    sampler,
    remover,
    seed,
):
    """With random episodes, failures, block lengths, merged blocks and shards, and with rows that are overwritten."""
    rng, codec, spec = np.random.default_rng(seed), make_codec(compress), image_spec(axis, k, channels=channels)
    pairs = [
        Pair(spec, n_step, codec, ImageSteps(spec, num_envs, rng, p_end, greys=greys, p_fail=p_fail), worker, sampler)
        for worker in range(num_workers)
    ]
    tables = [make_tables(spec, codec, capacity, sampler, remover) for _ in range(shards)]
    for worker, num_steps in blocks:
        collected = [pair.collect(num_steps) for pair in (pairs if merged else [pairs[worker % num_workers]])]
        chosen = tables[rng.integers(shards)]
        insert(chosen, [merge(parts) for parts in zip(*collected, strict=True)])
        framed, plain = chosen
        assert (framed.inserts, len(framed)) == (plain.inserts, len(plain))
        check_equal(framed.contents(), plain.contents())
        if len(plain):
            drawn, expected = framed.sample(2, 3, 0), plain.sample(2, 3, 0)
            check_equal(drawn.columns, expected.columns)
            np.testing.assert_array_equal(drawn.row_ids, expected.row_ids)
            if drawn.row_ids is not None:
                for table in chosen:
                    table.update_priorities(drawn.row_ids, np.ones((2, 3, 4) if sampler == "sequences" else (2, 3)))
    for framed, plain in tables:
        assert framed.stats() == plain.stats()


def test_an_episode_that_begins_with_copies_adds_one_frame():
    spec, codec = image_spec(0, 4), make_codec("none")
    builder = FrameBuilder(NStepBuilder(1, 0.9), make_stackings(spec), codec, 0, 0, 0)
    for episode in range(10):
        first, then = (np.full((1, 3, 2), 1 + 2 * episode + i, np.uint8) for i in range(2))
        obs, next_obs = np.concatenate([first] * 4), np.concatenate([*[first] * 3, then])
        flags = {"terminated": np.array([True]), "truncated": np.array([False]), "valid": np.array([True])}
        builder.append({"obs": obs[None], "next_obs": next_obs[None], "reward": np.zeros(1, np.float32), **flags})
    assert len(builder.take()["frame_id"]) == 20


def test_repeated_ids_with_other_frames_are_new_frames():
    """The workers of a run that loads another run's replay count frame ids from the start again."""
    spec, codec = image_spec(-1, 3), make_codec("none")
    tables = make_tables(spec, codec, 100)
    for seed in (0, 1):
        insert(tables, Pair(spec, 2, codec, ImageSteps(spec, 2, np.random.default_rng(seed))).collect(5))
    check_equal(tables[0].contents(), tables[1].contents())


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_memory_is_counted(sampler):
    """The estimate is right within 10% for a table of frames, and exact for a table of whole images."""
    spec, codec, capacity = image_spec(-1, 4, (20, 20)), make_codec("none"), 1000
    schema, config = transition_schema(spec), make_config(capacity, sampler)
    tables = make_tables(spec, codec, capacity, sampler)
    pair = Pair(spec, 3, codec, ImageSteps(spec, 4, np.random.default_rng(0), p_end=0.02, p_break=0.0))
    for _ in range(14):
        insert(tables, pair.collect(20))
    foreseen = config.table_bytes(reference_schema(schema, make_stackings(spec))) + frame_bytes(
        make_stackings(spec), capacity, "none"
    )
    assert 0.9 * foreseen < tables[0].nbytes <= foreseen
    assert tables[1].nbytes == config.table_bytes(schema)
    assert tables[0].nbytes < tables[1].nbytes / 4


def test_compression_saves_memory():
    spec, sizes = image_spec(-1, 4, (32, 32)), {}
    for compress in CODECS:
        codec = make_codec(compress)
        tables = make_tables(spec, codec, 40)
        pair = Pair(spec, 1, codec, ImageSteps(spec, 2, np.random.default_rng(0), 0.0, 0.0, greys=1))
        insert(tables, collected := pair.collect(20))
        pair.steps.greys = 2
        insert(tables, collected := pair.collect(20))
        sizes[compress] = tables[0].nbytes, collected[0]["frames"].nbytes
    assert sizes["lz4"][0] < sizes["none"][0] * 0.7
    assert sizes["lz4"][1] < sizes["none"][1] * 0.7


@pytest.mark.parametrize(
    ("shape", "stack", "size"),
    [
        *[((84, 84, 4), FrameStack(-1, 4), 84 * 84), ((4, 84, 84), FrameStack(0, 4), 84 * 84)],
        *[((6, 5, 12), FrameStack(-1, 4), 90), ((4, 6, 5, 3), FrameStack(0, 4), 90)],
        *[((6, 5, 3), FrameStack(-1, 1), 90), ((6, 5), FrameStack(-1, 1), 30)],
    ],
)
def test_split_and_join(shape, stack, size):
    stacking, obs = Stacking(shape, stack), np.random.default_rng(0).integers(256, size=(7, *shape)).astype(np.uint8)
    frames = stacking.split(obs)
    assert frames.shape == (7, stack.k, size)
    for j, frame in enumerate(np.split(obs, stack.k, axis=stack.axis if stack.axis < 0 else stack.axis + 1)):
        np.testing.assert_array_equal(frames[:, j], frame.reshape(7, -1))
    joined = np.empty_like(obs)
    stacking.join([frames[:, j] for j in range(stack.k)], joined)
    np.testing.assert_array_equal(joined, obs)


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


def check_batch(batch, expected):
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
    assert len(rollouts.builder.state()["frame_id"]) <= 1 + 8 * 5  # it keeps the frames of the newest stacks alone
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
            check_batch(batch, expected)
            rows = torch.tensor([[3, 0], [6, 3]])
            check_batch(take(batch, rows), {name: column[rows] for name, column in expected.items()})
    assert len(rollouts.tables[0]) == len(rollouts.tables[1])


def test_each_trainer_gets_the_frames_of_its_rows():
    rollouts = Rollouts(image_spec(0, 4), num_envs=2)
    rollouts.collect(10)
    framed, plain = (table.sample(1, 20, 0).columns for table in rollouts.tables)
    for part in (slice(0, 10), slice(10, 20)):
        mine = batch_part(framed, part)
        check_batch(rollouts.batch(mine), {name: column[0, part] for name, column in plain.items()})
        assert len(mine[UNIQUE]) == len(np.unique(np.concatenate([mine["obs"], mine["next_obs"]])))
        assert len(mine[UNIQUE]) < 0.8 * len(framed[UNIQUE])


def test_reading_a_column_joins_only_this_column():
    rollouts = Rollouts(image_spec(0, 4))
    rollouts.collect(4)
    batch, joined = rollouts.batch(rollouts.tables[0].sample(1, 8, 0).columns), []
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
    assert (more["obs"].shape, joined) == ((8, 4, 3, 2), ["obs"])


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
