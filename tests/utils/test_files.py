import errno
import os
import shutil

import pytest

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
