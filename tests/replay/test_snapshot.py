"""Snapshots keep the rows of their moment; a table loaded from a snapshot continues bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import IMAGES
from replays import CONFIGS, Source, call, check_equal_answers, check_same, clone, make

from drl_cli.replay.store import Snapshot, rows_per_chunk


def num_chunks(table, chunk_rows):
    return len(table.store.stamps(chunk_rows))


def save(table, chunk_rows, chunks=None):
    chunks = range(num_chunks(table, chunk_rows)) if chunks is None else chunks
    snapshot = Snapshot(table.store, chunk_rows, chunks)
    packed = [table.pack(snapshot.take(chunk)) for chunk in chunks]
    snapshot.close()
    return table.state(), packed


def load(kind, state, chunks, capacity=40):
    table = make(kind, seed=99, capacity=capacity)
    table.load_state(state)
    table.store.fill(table.unpack(chunks))
    return table


@settings(deadline=None, max_examples=50)
@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    before=st.lists(st.integers(0, 40), max_size=6),
    between=st.lists(st.lists(st.integers(1, 40), max_size=3), max_size=12),
    chunk_rows=st.sampled_from([1, 4, 8, 64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_table_at_its_moment(kind, before, between, chunk_rows, seed):
    """Blocks are inserted before the snapshot and between its chunks, up to several turns of the ring."""
    table, source, rng = make(kind, seed), Source(kind, seed), np.random.default_rng(seed)
    for rows in before:
        call(table, source.block(rows), rng)
    expected, state = clone(table), table.state()
    chunks = rng.permutation(num_chunks(table, chunk_rows)).tolist()
    snapshot, packed = Snapshot(table.store, chunk_rows, chunks), {}
    for i, chunk in enumerate(chunks):
        for rows in between[i] if i < len(between) else []:
            call(table, source.block(rows), rng)
        packed[chunk] = table.pack(snapshot.take(chunk))
        snapshot.let_go(chunk)
    snapshot.close()
    loaded = load(kind, state, [packed[chunk] for chunk in sorted(packed)])
    check_equal_answers([expected, loaded], source, seed)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    before=st.integers(1, 100),
    blocks=st.lists(st.integers(0, 12), max_size=4),
    chunk_rows=st.sampled_from([1, 4, 8]),
)
def test_chunks_with_an_unchanged_stamp_are_unchanged(kind, before, blocks, chunk_rows):
    table, source, rng = make(kind), Source(kind), np.random.default_rng(0)
    for _ in range(before // 10 + 1):
        call(table, source.block(10), rng)
    first, stamps, (_, packed) = table.store.inserts, table.store.stamps(chunk_rows), save(table, chunk_rows)
    for rows in blocks:
        call(table, source.block(rows), rng)
    new = table.store.stamps(chunk_rows)
    assert all(b >= a for a, b in zip(stamps, new, strict=False))
    changed = [i for i, stamp in enumerate(new) if i >= len(stamps) or stamp != stamps[i]]
    _, again = save(table, chunk_rows, changed)
    mixed = packed + [{}] * (len(new) - len(stamps))
    for chunk, rows in zip(changed, again, strict=True):
        mixed[chunk] = rows
    check_same([table, load(kind, table.state(), mixed)])
    if CONFIGS[kind].sampler == "uniform" and CONFIGS[kind].remover == "oldest":
        assert len(changed) <= -(-(table.store.inserts - first) // chunk_rows) + 1


def test_a_snapshot_that_is_closed_copies_nothing_more():
    table, source = make("uniform"), Source("uniform")
    table.insert(*source.block(40))
    snapshot = Snapshot(table.store, 8, [0, 1])
    snapshot.let_go(0)
    table.insert(*source.block(40))
    assert snapshot.take(1)["id"].tolist() == list(range(8, 16))
    snapshot.close()
    assert table.store.on_write is None


def distinct(table):
    rows = table.table.contents()
    return len({id(frame) for name in IMAGES for frame in rows[name].flat})


@pytest.mark.parametrize("kind", ["frames", "frames-lz4"])
def test_frames_are_saved_once_per_chunk_and_loaded_once(kind):
    table, source = make(kind), Source(kind)
    for _ in range(8):
        table.insert(*source.block(9))
    state, packed = save(table, 8)
    for chunk in packed:
        assert len(chunk["frame_size"]) <= 8 * 6
        assert len(chunk["frame_size"]) == len(np.unique(np.concatenate([chunk[name].ravel() for name in IMAGES])))
    loaded = load(kind, state, packed)
    assert distinct(loaded) <= distinct(table)
    tables = [table, loaded]
    block = source.block(5)  # its first frames are the last block's
    for each in tables:
        each.insert(*block)
    assert distinct(loaded) <= distinct(table)


def test_refuses_rows_with_other_columns():
    table, source = make("uniform"), Source("uniform")
    table.insert(*source.block(10))
    state, (chunk,) = save(table, 64)
    wrong = {**chunk, "obs": chunk["obs"].astype(np.float64), "more": chunk["id"]}
    del wrong["terminated"]
    with pytest.raises(ValueError, match=r"more: int64\[\], not none; obs: float64\[3\], not float32\[3\]; terminated"):
        load("uniform", state, [wrong])
    with pytest.raises(ValueError, match="holds whole images"):
        next(make("frames").unpack([chunk]))


def test_saved_sequences_name_the_column_valid_as_older_versions_do():
    table, source = make("sequences"), Source("sequences")
    table.insert(*source.block(5))
    state, chunks = save(table, 64)
    assert "mask" in chunks[0]
    assert "valid" not in chunks[0]
    np.testing.assert_array_equal(load("sequences", state, chunks).contents()["valid"], chunks[0]["mask"])


@pytest.mark.parametrize(("nbytes", "rows"), [(1, 4096), (86, 32), (4096, 1), (5000, 1), (2048, 2), (1366, 2)])
def test_chunks_are_powers_of_two(nbytes, rows):
    assert rows_per_chunk(nbytes, 4096) == rows
