import os
import subprocess
import sys
import tempfile

import pytest

from drl_cli.runtime.place import session_folder
from drl_cli.runtime.place.session_folder import IN_FOLDER, SOCKET_BYTES, SessionFolder, protect_token, token_path
from drl_cli.utils.files import base_folder

HOLD = """
from drl_cli.runtime.place.session_folder import SessionFolder
folder = SessionFolder()
print(folder.path, flush=True)
input()
"""


@pytest.fixture
def base(tmp_path, monkeypatch):
    """This user's private folder; there is no limit for the length of its path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session_folder, "SOCKET_BYTES", 1000)
    return base_folder()


def test_other_users_cannot_reach_the_files_of_a_session(base):
    folder = SessionFolder()
    folder.path.chmod(0o777)  # as Ray does
    assert folder.path.parent == base
    assert base.stat().st_mode & 0o777 == 0o700
    assert len(folder.path.name) == IN_FOLDER.index("/", 1) - 1
    folder.remove()
    assert [*base.iterdir()] == []


def test_sockets_have_short_paths(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = SessionFolder()
    assert len(f"{folder.path.parent}{IN_FOLDER}") <= SOCKET_BYTES
    folder.remove()


def test_folders_of_ended_processes_are_removed_and_others_stay(base):
    env = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    code = f"from drl_cli.runtime.place import session_folder; session_folder.SOCKET_BYTES = 1000\n{HOLD}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([sys.executable, "-c", code], env=env, **pipes) for _ in range(2)]
    names = {os.path.basename(other.stdout.readline().strip()) for other in others}
    assert {path.name for path in base.iterdir()} == names
    others[0].kill()
    others[0].communicate()
    own = SessionFolder()
    left = {path.name for path in base.iterdir()}
    assert (len(left), len(left & names), own.path.name in left) == (2, 1, True)
    others[1].communicate("\n")
    own.remove()
    SessionFolder().remove()
    assert [*base.iterdir()] == []


def test_the_child_processes_of_a_session_do_not_keep_its_folder_locked(base):
    folder = SessionFolder()
    assert not os.get_inheritable(folder._lock)
    os.close(folder._lock)  # as at the end of this process
    SessionFolder().remove()
    assert [*base.iterdir()] == []


@pytest.fixture
def token(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
    return token_path()


def test_only_this_user_can_read_a_new_token(token):
    before = os.umask(0)
    try:
        protect_token()
    finally:
        os.umask(before)
    text = token.read_text()
    assert (len(text), token.stat().st_mode & 0o777, token.parent.stat().st_mode & 0o777) == (64, 0o600, 0o700)
    protect_token()
    assert token.read_text() == text
    assert [*token.parent.iterdir()] == [token]


def test_a_token_that_others_could_read_is_closed_with_a_warning(token, caplog):
    token.parent.mkdir()
    token.write_text("old")
    token.chmod(0o644)
    protect_token()
    assert (token.read_text(), token.stat().st_mode & 0o777) == ("old", 0o600)
    assert f"delete {token}" in caplog.text
    caplog.clear()
    protect_token()
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_of_the_environment_is_used_instead(token, monkeypatch, name):
    monkeypatch.setenv(name, "given")
    protect_token()
    assert not token.exists()


def test_a_token_that_another_run_makes_at_the_same_time_is_kept(token, monkeypatch):
    link = os.link

    def late(draft, path):
        path.write_text("the other run's")
        path.chmod(0o600)
        link(draft, path)

    monkeypatch.setattr(os, "link", late)
    protect_token()
    assert token.read_text() == "the other run's"
    assert [*token.parent.iterdir()] == [token]
