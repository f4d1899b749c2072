"""What code of the user prints in the processes of roles. They write it to files, and the main process shows it."""

import io
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from drl_cli.utils.files import regular

MOST_LINES = 20
"""Lines of one role that are shown at once. The others are only in the role's file."""
MOST_BYTES = 1 << 20
"""Bytes that are read of a role's file at once."""


class Printed(io.TextIOBase):
    """A stream that writes each line to a file at once. It drops what does not fit on a full disk."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", buffering=1, errors="backslashreplace", opener=regular)  # noqa: SIM115

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._file.write(text)
        return len(text)


def write_prints(log_file: str) -> None:
    """Write what this process prints from now on to a file beside its log. Do nothing if the file can't be opened."""
    with suppress(OSError):
        sys.stdout = sys.stderr = Printed(Path(log_file).with_suffix(".out"))


class Prints:
    """Reads the new lines of all roles of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "workers"
        self._read = {path: path.stat().st_size for path in self._files()}  # a resumed run has old lines

    def take(self) -> Iterator[str]:
        """Yield the lines that are complete since the last call, with the names of their roles."""
        for path in self._files():
            lines = self._new_lines(path)
            for line in lines[:MOST_LINES]:
                yield f"{path.stem}: {line}"
            if len(lines) > MOST_LINES:
                yield f"{path.stem}: {len(lines) - MOST_LINES} more lines in {path}"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.out"))

    def _new_lines(self, path: Path) -> list[str]:
        start = self._read.get(path, 0)
        try:
            with open(path, "rb", opener=regular) as file:
                file.seek(start)
                content = file.read(MOST_BYTES)
        except OSError:
            return []
        complete, newline, _ = content.rpartition(b"\n")
        if not newline and len(content) == MOST_BYTES:
            complete = content  # one very long line
        self._read[path] = start + len(complete) + len(newline)
        return [line for line in complete.decode(errors="backslashreplace").splitlines() if line.strip()]
