"""A log file that drops lines if the disk is full, so that the program continues."""

import logging
from contextlib import suppress


class LogFile(logging.FileHandler):
    """A FileHandler that prints no traceback if a line can't be written."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def close(self) -> None:
        """Close the file. Drop buffered lines that can't be written."""
        with suppress(OSError):
            super().close()
