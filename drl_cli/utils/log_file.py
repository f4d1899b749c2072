"""A log file that drops its lines on a full disk, without stopping the program."""

import logging
from contextlib import suppress


class LogFile(logging.FileHandler):
    """A FileHandler that prints no traceback for lines that it could not write."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def close(self) -> None:
        """Close the file, and drop buffered lines that can't be written."""
        with suppress(OSError):
            super().close()
