"""Files that are replaced in one step, locked, or logged to, and folders that no other user can change.

The folder of a run may be somebody else's. The operating system releases a lock when its process ends, even if the
process is killed.
"""

import csv
import errno
import fcntl
import io
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

POLL_S = 0.05  # pause between attempts, because flock() has no timeout


class NotRegular(OSError):
    """Raised by `regular` for a pipe, a socket or a device in place of a file."""


def regular(path: str, flags: int) -> int:
    """Open a file, as the `opener` of Python's `open`. Raise NotRegular, in place of a wait, if it is a pipe or device.

    A file that is opened for writing must not be a link, because the link may lead to another file of the user.
    """
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    found = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if writes else 0), 0o666)
    if stat.S_ISREG(os.fstat(found).st_mode):
        return found
    os.close(found)
    raise NotRegular(errno.EINVAL, "is no regular file", path)


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raise OSError."""
    with open(path, "rb", opener=regular) as file:
        return file.read()


def lock(path: Path, shared: bool = False, timeout_s: float = 0.0) -> TextIO:
    """Lock a file until the returned file is closed. Raise BlockingIOError after `timeout_s` of waiting."""
    file, end = open(path, "a", opener=regular), time.monotonic() + timeout_s  # noqa: SIM115
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                file.close()
                raise
            time.sleep(POLL_S)
        else:
            return file


def is_locked(path: Path) -> bool:
    """Return whether a process has an exclusive lock on a file; False if there is no such regular file."""
    try:
        with open(path, opener=regular) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotRegular):
        return False
    except BlockingIOError:
        return True
    return False


def replace_file(path: Path, content: bytes, syncs: bool = True) -> None:
    """Write a temporary file and rename it to `path`. If this fails, remove the temporary file and raise OSError.

    After a power cut, the file has its old or its new content. Without `syncs`, the file may also be empty: this is
    faster, and enough for a file that is soon written again.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=regular) as file:
            file.write(content)
            file.flush()
            if syncs:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if syncs:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk, so that a renamed file has its new name after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step, for a process that is killed meanwhile: rename it to a hidden name, then remove it.

    If the process is killed, the hidden folder stays until a folder of the same name is removed, or a run resumes.
    """
    hidden = folder.with_name(f".{folder.name.lstrip('.')}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    shutil.rmtree(folder.rename(hidden))


def link(source: str | Path, target: str | Path) -> bool:
    """Make a hard link. Return False if `source` is missing or the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a csv file in one step, as `replace_file` does."""
    text = io.StringIO()
    csv.writer(text).writerows([head, *rows])
    replace_file(path, text.getvalue().encode())


class LogFile(logging.FileHandler):
    """A log file that drops lines if the disk is full, so that the program continues."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=regular)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def close(self) -> None:
        """Close the file. Drop buffered lines that can't be written."""
        with suppress(OSError):
            super().close()


def write_or_make_room(write: Callable[[], T], *make_room: Callable[[], object]) -> T:
    """Return `write()`. While the disk is full, call the next function of `make_room` and write again.

    Raise the OSError of the last attempt, and any other OSError at once.
    """
    for make in make_room:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        make()
    return write()


def reserve(path: Path, num_bytes: int) -> None:
    """Fill a file of this size, unless it exists. Removing the file gives its room back. Ignore a full disk."""
    if path.exists():
        return
    try:
        path.write_bytes(bytes(num_bytes))
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)


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
    try:
        return ids_of_root(*(Path(file).read_text() for file in ("/proc/self/uid_map", "/proc/sys/kernel/overflowuid")))
    except OSError:
        return frozenset({0})


def ids_of_root(uid_map: str, overflow: str) -> frozenset[int]:
    """Return the ids that root's files have here. In a user namespace without root, this is the overflow id."""
    return frozenset({0} if uid_map.split() == ALL_IDS else {0, int(overflow)})
