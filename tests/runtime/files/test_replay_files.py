import pytest
from replays import Source, make

from drl_cli.errors import CheckpointError
from drl_cli.runtime.files import replay_saver
from drl_cli.runtime.files.replay_files import file_name, read_states, refill
from drl_cli.runtime.files.replay_saver import ReplaySaver
from drl_cli.types import num_rows


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Save shards, each given by the rows of its blocks; return their states and the manifest."""
    monkeypatch.setattr(replay_saver, "now", lambda: 0.0)

    def save_it(kind, *shards):
        manifest, source = {"sha256": {}}, Source(kind)
        for shard, counts in enumerate(shards):
            saver = ReplaySaver(make(kind, shard), shard, 128)
            for rows in counts:
                saver.table.insert(*source.block(rows))
            saver.begin(tmp_path, None, {})
            manifest["sha256"] |= saver.part()
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


@pytest.mark.parametrize("kind", ["random", "fifo-once", "sequences"])
def test_rows_of_other_kinds_of_tables(save, tmp_path, kind):
    states, manifest = save(kind, (20, 20, 13))
    table, like = make(kind), make(kind)
    source = Source(kind)
    for rows in (20, 20, 13):
        like.insert(*source.block(rows))
    refill(table, 0, 1, tmp_path, manifest, states)
    if kind == "fifo-once":
        assert num_rows(table.contents()) == 0
    elif kind == "sequences":
        assert table.contents()["id"].tolist() == like.contents()["id"].tolist()
    else:  # every chunk holds rows of all ages
        assert len(table) == 40
        assert max(table.contents()["id"]) == 52


def test_an_empty_share_has_no_rows(save, tmp_path):
    states, manifest = save("uniform", (1,))
    assert refilled("uniform", 3, tmp_path, states, manifest) == [[], [], [0]]
