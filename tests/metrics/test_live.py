import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import suppress

import pytest

from drl_cli.metrics.live import Live
from drl_cli.metrics.status import Status


@pytest.fixture
def terminal(monkeypatch):
    """Return the stream of a terminal, a function that sets its size, and one that returns the new output."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    main, end = pty.openpty()
    os.set_blocking(main, False)

    def resize(width, height):
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    resize(100, 30)
    with os.fdopen(end, "w") as out:
        monkeypatch.setattr("rich.console._STD_STREAMS", (end,))  # rich asks the standard streams for the size
        yield out, resize, lambda: read_all(main).decode()
    os.close(main)


def read_all(main):
    """Return everything that the terminal has received; one read returns a part of it."""
    parts = []
    with suppress(BlockingIOError):
        while part := os.read(main, 1 << 16):
            parts.append(part)
    return b"".join(parts)


def rows_up(text):
    """Return how many rows the cursor goes up before the first text."""
    return sum(int(count) for count in re.findall(r"\x1b\[(\d+)A", text.partition("\u256d")[0]))


@pytest.mark.parametrize(
    ("width", "height", "factor"), [(100, 30, 1), (120, 30, 1), (50, 30, 2), (49, 30, 3), (50, 7, 2)]
)
def test_a_narrower_terminal_leaves_no_remains_of_the_panel(terminal, width, height, factor):
    out, resize, read = terminal
    live = Live(out)
    status = Status(title="x", awaits="warm-up", done=640, needed=1000)
    live.tick(status)
    rows = read().rpartition("\u256d")[2].count("\n") + 1
    resize(width, height)
    live.tick(status)
    text = read()
    assert rows_up(text) == min(rows * factor, height) - 1
    assert ("\x1b[J" in text) == (width < 100)
    live.tick(status)
    assert "\x1b[J" not in read()
    live.close()
