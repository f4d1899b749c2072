import contextlib
import errno
import os
import shutil

import pytest

from drl_cli.metrics.recorders import Csv, JsonLines
from drl_cli.metrics.status import Status
from drl_cli.runs.run import Run, read_json
from drl_cli.utils import files
from drl_cli.utils.files import remove_folder, replace_file, reserve, write_or_make_room


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("needed", [0, 1, 2])
def test_room_is_made_until_the_write_succeeds(code, needed):
    made = []

    def write():
        if len(made) < needed:
            raise OSError(code, "full")
        return "written"

    assert write_or_make_room(write, lambda: made.append("a"), lambda: made.append("b")) == "written"
    assert made == ["a", "b"][:needed]


@pytest.mark.parametrize(("code", "made"), [(errno.ENOSPC, 1), (errno.EIO, 0)])
def test_the_last_error_is_raised_and_any_other_error_at_once(code, made):
    calls = []

    def write():
        raise OSError(code, "no")

    with pytest.raises(OSError, match="no"):
        write_or_make_room(write, lambda: calls.append(1))
    assert len(calls) == made


def test_a_reserve_is_filled_once_and_never_left_half_filled(tmp_path, monkeypatch):
    path = tmp_path / "reserve"
    reserve(path, 10)
    reserve(path, 20)
    assert path.stat().st_size == 10
    reserve(tmp_path / "missing" / "reserve", 10)  # an OSError is ignored
    assert [file.name for file in tmp_path.iterdir()] == ["reserve"]


@pytest.mark.parametrize("syncs", [True, False])
def test_a_file_is_replaced_after_its_content_and_before_its_name_are_synced(tmp_path, monkeypatch, syncs):
    path, done, fsync, replace = tmp_path / "file", [], os.fsync, os.replace

    def note_sync(descriptor):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append((name, os.fstat(descriptor).st_size if name.startswith(".file") else None))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", lambda *args: (done.append("replace"), replace(*args)))
    path.write_bytes(b"old")
    replace_file(path, b"new one", syncs)
    draft, name = (f".file.{os.getpid()}", 7), (tmp_path.name, None)
    assert done == ([draft, "replace", name] if syncs else ["replace"])
    assert (path.read_bytes(), [file.name for file in tmp_path.iterdir()]) == (b"new one", ["file"])


def test_a_removed_folder_has_a_hidden_name_first(tmp_path, monkeypatch):
    rmtree, seen = shutil.rmtree, []
    (tmp_path / "step").mkdir()
    (tmp_path / ".step.old" / "left").mkdir(parents=True)  # of a killed process
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: (seen.append(path.name), rmtree(path, **options)))
    remove_folder(tmp_path / "step")
    assert seen == [".step.old", ".step.old"]
    assert not list(tmp_path.iterdir())


def test_a_lock_and_a_log_follow_no_link_and_change_no_content(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    (tmp_path / "link").symlink_to(precious)
    for write in (
        lambda path: files.lock(path),
        lambda path: files.LogFile(path),
        lambda path: Csv(path, ["a"]).write({"a": 1.0}),
        lambda path: JsonLines(path),
    ):
        with contextlib.suppress(OSError):
            write(tmp_path / "link")
        assert precious.read_text() == "precious\n"
    files.lock(precious).close()
    assert precious.read_text() == "precious\n"
    (tmp_path / f".new.{os.getpid()}").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic"):
        files.replace_file(tmp_path / "new", b"x")
    assert precious.read_text() == "precious\n"


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for call in (files.read_file, files.lock, files.LogFile, JsonLines):
        with pytest.raises(OSError, match=r"regular|device"):
            call(pipe)
    assert files.is_locked(pipe) is False
    assert read_json(pipe) == {}
    assert Status.read(tmp_path) is None
    for name in ("metrics.jsonl", "config.yaml", "run.json", "eval.csv", ".lock"):
        os.mkfifo(tmp_path / name)
    run = Run(tmp_path)
    assert (run.last_report, run.config, run.status, len(run.curve.returns)) == ({}, {}, "unknown", 0)


def test_a_lock_is_seen(tmp_path):
    with files.lock(tmp_path / "lock"):
        assert files.is_locked(tmp_path / "lock")
    assert not files.is_locked(tmp_path / "lock")
    assert not files.is_locked(tmp_path / "missing")
