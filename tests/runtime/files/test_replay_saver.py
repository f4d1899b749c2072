import errno
import shutil
from types import SimpleNamespace

import pytest
from replays import CONFIGS, Source, make

from drl_cli.runtime.files import replay_saver
from drl_cli.runtime.files.replay_files import file_name
from drl_cli.runtime.files.replay_saver import MARGIN_BYTES, ReplaySaver

EXTRA = {}


def filled(kind="uniform", *counts):
    table, source = make(kind), Source(kind)
    for rows in counts:
        table.insert(*source.block(rows))
    return table


def saver(*counts, kind="uniform", chunk_bytes=128):
    return ReplaySaver(filled(kind, *counts), 2, chunk_bytes)


@pytest.mark.parametrize(
    ("seconds", "nbytes", "per_part"),
    [
        *[(0.01, 0, 5), (0.02, 0, 3), (0.05, 0, 1), (0.06, 0, 1)],
        *[(0.0, 8 << 20, 1), (0.0, (8 << 20) - 1, 2), (0.0, 3 << 20, 3)],
    ],
)
def test_a_part_takes_50_ms_or_8_megabytes(tmp_path, monkeypatch, seconds, nbytes, per_part):
    made, clock = saver(40), SimpleNamespace(now=100.0)
    monkeypatch.setattr(replay_saver, "now", lambda: clock.now)
    write = made._write

    def slow(*args):
        clock.now += seconds
        write(*args)
        return nbytes

    made._write = slow
    made.begin(tmp_path, None, EXTRA)
    chunks = len(made._save.chunks)
    assert chunks > 6
    assert made.part() is None
    assert chunks - len(made._save.chunks) == per_part


def test_the_last_part_returns_all_files_and_ends_the_save(tmp_path, monkeypatch):
    made = saver(30)
    monkeypatch.setattr(replay_saver, "now", lambda: 0.0)
    made.begin(tmp_path, None, EXTRA)
    assert made.table.store.on_write is not None
    sums = made.part()
    assert sorted(sums) == sorted(path.name for path in tmp_path.iterdir())
    assert file_name(2) in sums
    assert all(name.startswith("state.replay-2") for name in sums)
    assert made.table.store.on_write is None  # the snapshot is closed
    with pytest.raises(ValueError, match="no save of the replay is running"):
        made.part()
    made.abort()
    assert sorted(sums) == sorted(path.name for path in tmp_path.iterdir())


def test_an_abort_removes_the_files_and_ends_the_save(tmp_path, monkeypatch):
    made = saver(40)
    monkeypatch.setattr(replay_saver, "PART_BYTES", 1)
    made.begin(tmp_path, None, EXTRA)
    made.part()
    assert list(tmp_path.iterdir())
    (tmp_path / "state.replay-0.safetensors").touch()  # another shard's
    made.abort()
    assert [path.name for path in tmp_path.iterdir()] == ["state.replay-0.safetensors"]
    assert made.table.store.on_write is None
    made.begin(tmp_path, None, EXTRA)
    made.part()
    made.begin(tmp_path, None, EXTRA)  # aborts the running save
    assert [path.name for path in tmp_path.iterdir()] == ["state.replay-0.safetensors"]


@pytest.mark.parametrize("rows", [40, 62])
def test_chunks_that_are_overwritten_soonest_are_written_first(tmp_path, rows):
    made = saver(*[20] * (rows // 20), rows % 20)
    made.begin(tmp_path, None, EXTRA)
    chunks, step = made._save.chunks, made.chunk_rows
    first = rows % 40 // step
    assert step == 4
    assert chunks == [*range(first, 10), *range(first)]


def test_room_is_counted_for_rows_state_and_a_margin(tmp_path, monkeypatch):
    made = saver(30)
    free = SimpleNamespace(bytes=10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.bytes))
    needed = made.begin(tmp_path, None, EXTRA)
    state = sum(array.nbytes for array in made._save.state.values())
    assert needed == 30 * made.table.row_nbytes + state
    assert MARGIN_BYTES == 64 * 2**20
    free.bytes = needed + MARGIN_BYTES
    assert made.begin(tmp_path, None, EXTRA) == needed
    free.bytes -= 1
    with pytest.raises(OSError, match=r"the replay needs .* MiB and 64\.0 MiB to spare, 64\.0 MiB are free") as caught:
        made.begin(tmp_path, None, EXTRA)
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
