import errno
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from replays import CONFIGS, Source, make

from drl_cli.errors import CheckpointError
from drl_cli.run_folder.replay_files import MARGIN_BYTES, ReplaySaver, file_name, read_states, refill


@pytest.fixture
def save(tmp_path):
    """Save shards, each given by the rows of its blocks; return their states and the manifest."""

    def save_it(kind, *shards):
        manifest, source = {"sha256": {}}, Source(kind)
        for shard, counts in enumerate(shards):
            saver = ReplaySaver(make(kind, shard), shard, 128)
            for rows in counts:
                saver.table.insert(*source.block(rows))
            saver.begin(tmp_path, None, {})
            while (sums := saver.part()) is None:
                pass
            manifest["sha256"] |= sums
        return read_states(tmp_path, manifest), manifest

    return save_it


def refilled(kind, num_shards, folder, states, manifest):
    tables = [make(kind) for _ in range(num_shards)]
    for shard, table in enumerate(tables):
        refill(table, shard, num_shards, folder, manifest, states)
    return [table.contents()["id"].tolist() for table in tables]


def test_the_states_of_all_shards_are_read(save, tmp_path):
    states, manifest = save("uniform", (20,), (5, 3), (9,))
    assert [state["size"].item() for state in states] == [20, 8, 9]
    del manifest["sha256"][file_name(1)]
    assert len(read_states(tmp_path, manifest)) == 1
    for name in [name for name in manifest["sha256"] if name.startswith("state.replay")]:
        del manifest["sha256"][name]
    with pytest.raises(CheckpointError, match="was saved without the replay"):
        read_states(tmp_path, manifest | {"sha256": {"state.trainer.safetensors": ""}})
    with pytest.raises(CheckpointError, match="missing or damaged"):
        read_states(tmp_path, {"sha256": {file_name(0): "another"}})


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize("counts", [(30,), (40,), (20, 20, 13), (20, 20, 40), (20, 20, 39, 3)])
def test_shards_share_the_saved_rows_without_doubles(save, tmp_path, num_shards, counts):
    states, manifest = save("uniform", counts)
    parts = refilled("uniform", num_shards, tmp_path, states, manifest)
    total = sum(counts)
    for rows in parts:
        assert rows == sorted(rows)  # oldest first
        assert abs(len(rows) - min(40, total) / num_shards) <= 12  # each chunk is split between the shards
    assert sorted(row for rows in parts for row in rows) == list(range(max(0, total - 40), total))


def test_the_oldest_rows_of_several_shards_come_first(save, tmp_path):
    """Ages follow from the row numbers in each shard; shards that were filled evenly have the same ages."""
    states, manifest = save("uniform", (12,), (12,))
    (rows,) = refilled("uniform", 1, tmp_path, states, manifest)
    assert [*range(4), *range(12, 16), *range(4, 8), *range(16, 20), *range(8, 12), *range(20, 24)] == rows


def test_an_empty_share_has_no_rows(save, tmp_path):
    states, manifest = save("uniform", (1,))
    assert refilled("uniform", 3, tmp_path, states, manifest) == [[], [], [0]]


def filled(kind="uniform", *counts):
    table, source = make(kind), Source(kind)
    for rows in counts:
        table.insert(*source.block(rows))
    return table


def test_room_is_counted_for_rows_state_and_a_margin(tmp_path, monkeypatch):
    made, free = ReplaySaver(filled("uniform", 30), 2, 128), SimpleNamespace(bytes=10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.bytes))
    needed, rows = made.begin(tmp_path, None, {}), 30 * made.table.row_nbytes
    assert needed > rows
    assert made.begin(tmp_path, None, {"more": np.zeros(100, np.uint8)}) == needed + 100
    free.bytes = needed + MARGIN_BYTES
    assert made.begin(tmp_path, None, {}) == needed
    free.bytes -= 1
    with pytest.raises(OSError, match=r"the replay needs .* MiB and 64\.0 MiB to spare, 64\.0 MiB are free") as caught:
        made.begin(tmp_path, None, {})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_state_fits_a_table_of_the_same_kind_and_capacity(kind):
    state = ReplaySaver(filled(kind, 9))._header()
    state |= {f"table.{name}": array for name, array in filled(kind, 9).state().items()}
    assert ReplaySaver(make(kind)).fits(state)
    assert not ReplaySaver(make(kind, capacity=41)).fits(state)
    other = "uniform" if kind.startswith("fifo") else "fifo-once"
    assert not ReplaySaver(make(other)).fits(state)
