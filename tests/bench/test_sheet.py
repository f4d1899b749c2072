"""The table, in plain text and on a terminal."""

import io

from drl_cli.bench.figures import Figure
from drl_cli.bench.sheet import Sheet

FIGURE = Figure("replay", "insert, uniform", "rows/s", 15471479.0, (14e6, 15471479.0, 17e6), "half full")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_come_as_they_are_measured():
    out = io.StringIO()
    with Sheet(out) as sheet:
        sheet.add(FIGURE)
        head, line = out.getvalue().splitlines()
        sheet.add(Figure("end", "start-up to the first step", "s", 3.456))
    assert head.split() == ["part", "what", "median", "min", "-", "max"]
    assert line.split("  ")[0] == "replay"
    assert all(
        text in line for text in ("insert, uniform", "15,471,479 rows/s", "14,000,000 - 17,000,000", "half full")
    )
    last = out.getvalue().splitlines()[-1]
    assert last.endswith("3.46 s")
    assert line.index("rows/s") + len("rows/s") == last.index(" s", 50) + len(" s")  # in one column


def test_a_terminal_gets_a_table_with_the_same(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    out = Terminal()
    with Sheet(out) as sheet:
        sheet.add(FIGURE)
    assert all(text in out.getvalue() for text in ("┏", "15,471,479 rows/s", "half full"))


def test_a_figure_can_be_a_single_measurement():
    with Sheet(out := io.StringIO()) as sheet:
        sheet.add(Figure("end", "workers wait", "%", 51.0))
    assert out.getvalue().splitlines()[-1].split() == ["end", "workers", "wait", "51", "%"]
