"""Tables as text."""

import io
import re

from drl_cli.runs.table import between, number, table

HEAD, ROWS = ("run", "best", "why"), [("a", "1.5", "x=1"), ("long-name", "-100.0", "")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_are_aligned_numbers_on_the_right():
    assert table(HEAD, ROWS, io.StringIO(), left=("run", "why")).splitlines() == [
        "run          best  why",
        "a             1.5  x=1",
        "long-name  -100.0",
    ]


def on_terminal(width, monkeypatch, rows):
    monkeypatch.setenv("COLUMNS", str(width))
    drawn = re.sub(r"\x1b\[\d*m", "", table(HEAD, rows, Terminal(), left=("run", "why")))
    lines = [line.rstrip() for line in drawn.splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_on_a_terminal_words_go_on_in_the_next_line(monkeypatch):
    rows = [("[red]a-name[/red]", "1", "algo.lr=0.001 network.hidden=64 seed=1")]
    assert on_terminal(52, monkeypatch, rows) == [
        "run                best  why",
        "[red]a-name[/red]     1  algo.lr=0.001",
        "                         network.hidden=64 seed=1",
    ]


def test_on_a_terminal_that_is_too_narrow_nothing_is_lost(monkeypatch):
    lines = on_terminal(24, monkeypatch, [("a-long-name-of-a-run", "1234567", "x=1")])
    assert "".join(line.split()[0] for line in lines[1:]) == "a-long-name-of-a-run"


def test_a_terminal_without_rows(monkeypatch):
    assert on_terminal(50, monkeypatch, []) == ["run  best  why"]


def test_numbers_that_are_not_there():
    assert [number(value) for value in (None, float("nan"), float("inf"), 0, 1234.5)] == ["-", "-", "-", "0", "1,234"]
    assert between(2.0, 1.0, 3.0) == "2.0 [1.0, 3.0]"
    assert between(2.0, float("nan"), float("nan")) == "2.0"
