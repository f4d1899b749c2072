"""Folders that no other user of this machine can change, such as the one for Ray's sockets and for compiled code."""

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
ALL_IDS = ["0", "0", str(2**32 - 1)]
"""The user ids of a process that is in no user namespace: first id inside, first id outside, count."""


ADVICE = "set TMPDIR, or TORCHINDUCTOR_CACHE_DIR for compiled code, to a folder of your own"


@dataclass(frozen=True)
class PrivateFolder:
    """An open folder of this user. `path` is its real path."""

    path: Path
    descriptor: int

    @property
    def opened(self) -> Path:
        """A path that leads to the opened folder, whatever now lies at `path`. Child processes need `descriptor`, too.

        On systems without /proc this is `path`. Nobody else could change that path when it was checked.
        """
        return Path(f"/proc/self/fd/{self.descriptor}") if sys.platform == "linux" else self.path


def base_folder(longest: int | None = None) -> Path:
    """Return this user's private folder for temporary files: in TMPDIR, or in /tmp if TMPDIR does not fit.

    TMPDIR does not fit if another user could change it, or if the path would have more than `longest` bytes.
    """
    name, problem = f"drl-{os.getuid()}", None
    for parent in (tempfile.gettempdir(), "/tmp"):
        if longest is None or len(os.fsencode(f"{parent}/{name}")) <= longest:
            try:
                folder = open_private(Path(parent), [name])
            except PermissionError as error:
                problem = error
            else:
                os.close(folder.descriptor)
                return folder.path
    raise problem or PermissionError(f"the path of TMPDIR, {tempfile.gettempdir()}, is too long")


def open_private(parent: Path, names: Sequence[str] = ()) -> PrivateFolder:
    """Open the folder `parent/names[0]/names[1]/...`. Create missing folders, which only this user can open.

    Links are followed in `parent` alone. Raise PermissionError if another user could replace or change the folder:
    every folder on the path must belong to this user or root, and must not be writable for others. A folder with the
    sticky bit such as /tmp may be writable, because there only the owner of a file can rename the file.
    """
    path = Path("/")
    descriptor = os.open(path, OPEN)
    for name in (*parent.resolve().parts[1:], *names):
        try:
            _check(path, descriptor)
            path /= name
            child = _open_or_make(name, path, descriptor)
        finally:
            os.close(descriptor)
        descriptor = child
    try:
        _check(path, descriptor, is_last=True)
    except PermissionError:
        os.close(descriptor)
        raise
    return PrivateFolder(path, descriptor)


def _open_or_make(name: str, path: Path, parent: int) -> int:
    try:
        return os.open(name, OPEN, dir_fd=parent)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another process of this user made the folder at the same time
            os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, OPEN, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise PermissionError(f"{path} is a link or a file, not a folder; {ADVICE}") from error


def _check(path: Path, descriptor: int, is_last: bool = False) -> None:
    """Raise PermissionError if another user could change the entries of an open folder."""
    status = os.fstat(descriptor)
    owners = {os.getuid()} if is_last else {os.getuid(), *_root_ids()}
    is_sticky = status.st_mode & stat.S_ISVTX and not is_last
    if status.st_uid not in owners or (status.st_mode & 0o022 and not is_sticky):
        who = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"
        raise PermissionError(f"other users can change the folder {path} ({who}); {ADVICE}")


@cache
def _root_ids() -> frozenset[int]:
    """Return the ids that root's files have here. In a user namespace without root, this is the overflow id."""
    try:
        ids = Path("/proc/self/uid_map").read_text().split()
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return frozenset({0})
    return frozenset({0} if ids == ALL_IDS else {0, overflow})
