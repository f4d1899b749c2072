import io
import re

from drl_cli.runs.text_table import between, number, table

HEAD, ROWS = ("run", "best", "why"), [("a", "1.5", "x=1"), ("long-name", "-100.0", "")]


def test_plain_lines_are_aligned_with_numbers_on_the_right():
    assert table(HEAD, ROWS, io.StringIO(), left=("run", "why")).splitlines() == [
        "run          best  why",
        "a             1.5  x=1",
        "long-name  -100.0",
    ]


def on_terminal(width, monkeypatch, rows):
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    drawn = re.sub(r"\x1b\[\d*m", "", table(HEAD, rows, terminal, left=("run", "why")))
    lines = [line.rstrip() for line in drawn.splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_a_terminal_wraps_cells_between_words(monkeypatch):
    rows = [("[red]a-name[/red]", "1", "algo.lr=0.001 network.hidden=64 seed=1")]
    assert on_terminal(52, monkeypatch, rows) == [
        "run                best  why",
        "[red]a-name[/red]     1  algo.lr=0.001",
        "                         network.hidden=64 seed=1",
    ]


def test_a_narrow_terminal_loses_no_text(monkeypatch):
    lines = on_terminal(24, monkeypatch, [("a-long-name-of-a-run", "1234567", "x=1")])
    assert "".join(line.split()[0] for line in lines[1:]) == "a-long-name-of-a-run"


def test_a_table_without_rows(monkeypatch):
    assert on_terminal(50, monkeypatch, []) == ["run  best  why"]


def test_missing_numbers():
    assert [number(value) for value in (None, float("nan"), float("inf"), 0, 1234.5)] == ["-", "-", "-", "0", "1,234"]
    assert (between(2.0, 1.0, 3.0), between(2.0, float("nan"), float("nan"))) == ("2.0 [1.0, 3.0]", "2.0")
