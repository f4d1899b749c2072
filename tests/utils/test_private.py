import os
import sys
import tempfile
from pathlib import Path

import pytest

from drl_cli.utils import machine, private
from drl_cli.utils.private import base_folder, open_private

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
    monkeypatch.setattr(private, "_root_ids", lambda: frozenset({0, own}))
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


def test_in_a_user_namespace_files_of_root_have_the_overflow_id(monkeypatch):
    texts = {"/proc/self/uid_map": "0 0 4294967295\n", "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(Path, "read_text", lambda self: texts[str(self)])
    assert private._root_ids.__wrapped__() == {0}
    texts["/proc/self/uid_map"] = "1000 0 1\n"
    assert private._root_ids.__wrapped__() == {0, 65534}


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
