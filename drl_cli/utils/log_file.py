"""A log file that is silent when the disk is full: the lines are lost, what is logged goes on."""

import logging
from contextlib import suppress


class LogFile(logging.FileHandler):
    """Where logging's own handler would print a traceback for every line that could not be written."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line."""

    def close(self) -> None:
        """Lose what could not be written until now."""
        with suppress(OSError):
            super().close()
