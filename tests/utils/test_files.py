import contextlib
import errno
import os
import sys
import tempfile
from pathlib import Path

import pytest

from drl_cli.metrics.recorders import Csv, JsonLines
from drl_cli.metrics.status import Status
from drl_cli.run_folder.saved_run import Run, read_json
from drl_cli.utils import files, machine
from drl_cli.utils.files import base_folder, open_private, replace_file, reserve, write_or_make_room


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


OTHER = 4711


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """TMPDIR, in which everybody may write, as in /tmp."""
    folder = tmp_path / "t"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def mode(path):
    return path.stat().st_mode & 0o7777


def opened(parent, *names):
    folder = open_private(parent, names)
    os.close(folder.descriptor)
    return folder.path


def test_missing_folders_are_made_for_this_user_only(temporary):
    before = os.umask(0)
    try:
        path = opened(temporary, "a", "b")
    finally:
        os.umask(before)
    assert (path, mode(path), mode(path.parent)) == (temporary / "a" / "b", 0o700, 0o700)
    assert opened(temporary, "a", "b") == path


@pytest.mark.parametrize(("at", "bits"), [("a/b", 0o720), ("a/b", 0o702), ("a", 0o720), ("a", 0o703), ("a/b", 0o1777)])
def test_a_folder_that_others_may_write_to_is_refused(temporary, at, bits):
    opened(temporary, "a", "b")
    (temporary / at).chmod(bits)
    with pytest.raises(PermissionError, match=rf"other users can change the folder {temporary / at} .*set TMPDIR"):
        opened(temporary, "a", "b")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("at", ["a", "a/b"])
def test_a_folder_of_another_user_is_refused(temporary, at):
    opened(temporary, "a", "b")
    os.chown(temporary / at, OTHER, OTHER)
    with pytest.raises(PermissionError, match=f"can change the folder {temporary / at} .owner {OTHER},"):
        opened(temporary, "a", "b")


def test_a_folder_of_root_may_lie_on_the_path_but_not_at_its_end(temporary, monkeypatch):
    own = temporary.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    monkeypatch.setattr(files, "_root_ids", lambda: frozenset({0, own}))
    with pytest.raises(PermissionError, match="can change the folder"):
        opened(temporary)
    with pytest.raises(PermissionError, match=f"can change the folder {temporary / 'a'} "):
        opened(temporary, "a")  # so the check has passed all folders above


def test_links_are_followed_only_in_the_part_that_the_user_names(temporary):
    opened(temporary, "real", "x")
    (temporary / "link").symlink_to("real")
    assert opened(temporary / "link", "x") == temporary / "real" / "x"
    with pytest.raises(PermissionError, match="link is a link or a file"):
        opened(temporary, "link", "x")
    (temporary / "file").touch()
    with pytest.raises(PermissionError, match="file is a link or a file"):
        opened(temporary, "file")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_opened_path_stays_with_the_folder_that_was_checked(temporary):
    folder = open_private(temporary, ["a"])
    folder.path.rename(temporary / "away")
    (temporary / "a").mkdir()
    (folder.opened / "library").touch()
    assert [*(temporary / "a").iterdir()] == []
    assert (temporary / "away" / "library").exists()
    os.close(folder.descriptor)


def test_no_descriptor_is_left_open(temporary):
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    opened(temporary, "a", "b")
    base_folder()
    (temporary / "a").chmod(0o777)
    for _ in range(3):
        with pytest.raises(PermissionError):
            opened(temporary, "a", "b")
        with pytest.raises(PermissionError):
            opened(temporary, "a")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_base_lies_in_tmpdir_or_else_in_tmp(temporary):
    name = f"drl-{os.getuid()}"
    assert base_folder() == temporary / name
    assert base_folder(longest=len(f"{temporary}/{name}")) == temporary / name
    assert base_folder(longest=len(f"{temporary}/{name}") - 1) == Path("/tmp").resolve() / name
    (temporary / name).chmod(0o777)
    assert base_folder() == Path("/tmp").resolve() / name
    with pytest.raises(PermissionError, match="is too long"):
        base_folder(longest=3)


def test_in_a_user_namespace_files_of_root_have_the_overflow_id():
    assert files.ids_of_root("0 0 4294967295\n", "65534\n") == {0}
    assert files.ids_of_root("1000 0 1\n", "65534\n") == {0, 65534}


@pytest.mark.parametrize("named", [True, False])
def test_torch_uses_the_folder_for_compiled_code_that_was_checked(temporary, monkeypatch, named):
    machine._library_folder.cache_clear()
    expected = temporary / f"drl-{os.getuid()}" / "compiled"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    if named:
        expected = temporary / "mine"
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(expected))
    assert machine.library_folder().path == expected
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(expected)
    assert machine.library_folder().path == expected
    if named:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(temporary))  # where everybody could have put a library
        with pytest.raises(PermissionError, match="TORCHINDUCTOR_CACHE_DIR"):
            machine.library_folder()
    machine._library_folder.cache_clear()
