"""Files that are replaced in one step, locked, or logged to. The folder of a run may be somebody else's.

The operating system releases a lock when its process ends, even if the process is killed.
"""

import csv
import errno
import fcntl
import io
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
