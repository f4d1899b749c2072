"""What the processes of a local Ray session share through files, and what no other user may read: folder and token."""

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from drl_cli.utils.files import base_folder

log = logging.getLogger(__name__)

SOCKET_BYTES = 103
"""The longest path of a Unix socket, on macOS. Linux allows 107 bytes."""
IN_FOLDER = "/ray-12345678/session_2026-11-29_12-00-00_123456_1234567/sockets/plasma_store"
"""The path of Ray's longest socket below the private folder."""


class SessionFolder:
    """A new folder for the files of one Ray session. It is locked as long as this process lives or until `remove`.

    The folder lies in a folder that only this user can open, because Ray opens its own folders to all users. The
    constructor also removes folders of processes that ended without `remove`.
    """

    def __init__(self) -> None:
        base = base_folder(longest=SOCKET_BYTES - len(IN_FOLDER))
        for folder in base.glob("ray-*"):
            _remove_if_unlocked(folder)
        draft = Path(tempfile.mkdtemp(prefix="new-", dir=base))
        self._lock = os.open(draft, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = base / draft.name.replace("new-", "ray-", 1)
        os.rename(draft, self.path)  # only now do other processes find the folder, which is locked

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_unlocked(folder: Path) -> None:
    with suppress(FileNotFoundError):  # another process removes it
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its session runs
            return
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def token_path() -> Path:
    """Return the path of the token that all Ray sessions of this user share by default."""
    return Path.home() / ".ray" / "auth_token"


def protect_token() -> None:
    """Make sure that only this user can read Ray's token. Ray would create a token that everybody can read."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = token_path()
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=path.parent)  # readable by this user only
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another run of this user made the token at the same time
            os.link(draft, path)
        os.unlink(draft)
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
        log.warning("Other users could read Ray's token. They no longer can; to get a new token, delete %s", path)
