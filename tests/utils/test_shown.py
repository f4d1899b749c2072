"""Control characters of a text from a file never reach the terminal."""

import ast
import logging
import re
from pathlib import Path

import pytest

import drl_cli
from drl_cli.utils import shown as module
from drl_cli.utils.run_log import Shown
from drl_cli.utils.shown import cell, score_text, shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\ttext\nof two lines, äöü 中", "plain\ttext\nof two lines, äöü 中"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\x08c\x7f\x9b2J", r"a\rb\x08c\x7f\x9b2J"),
        ("abc\u202ecba\u2066x\u2028y", r"abc\u202ecba\u2066x\u2028y"),
        ("\udc80", r"\udc80"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_control_characters_are_escapes(text, seen):
    assert shown(text) == seen
    assert shown(shown(text)) == seen


def test_a_cell_is_one_line():
    assert cell("a\nnext: \x1b[2K") == r"a\nnext: \x1b[2K"


def test_print_and_warnings_escape(capsys):
    module.print("a\x1b[2J", 3, "b", sep="\n", end="!\n")
    assert capsys.readouterr().out == "a\\x1b[2J\n3\nb!\n"
    record = logging.LogRecord("drl_cli", logging.WARNING, "", 1, "%s is here", ("\x1b[2J",), None)
    assert Shown("warning: %(message)s").format(record) == r"warning: \x1b[2J is here"


def test_every_module_prints_through_shown():
    """Python's own `print` would pass escape sequences to the terminal."""
    for path in Path(drl_cli.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        imported = {
            alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module == "drl_cli.utils.shown"
            for alias in node.names
        }
        assert path.name == "shown.py" or "print" not in names or "print" in imported, path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(200.0, "200.0"), (-182.34, "-182.3"), (1.0, "1.0"), (0.0, "0.0"), (18.9, "18.9"), (-285784.44, "-285784.4")],
        *[
            (0.96, "0.96"),
            (0.0619, "0.0619"),
            (-0.00123, "-0.00123"),
            (5.14, "5.14"),
            (1e-7, "1e-07"),
            (3.6e-15, "0.0"),
        ],
        *[(None, "-"), (float("nan"), "-"), (float("inf"), "-")],
    ],
)
def test_a_return_of_any_size_can_be_read(value, text):
    assert score_text(value) == text


def test_no_module_logs_past_the_run_log():
    """The functions of `logging` write to the root logger, which neither train.log nor `warning: ` have."""
    for path in Path(drl_cli.__file__).parent.rglob("*.py"):
        assert not re.search(r"\blogging\.(warning|error)\(", path.read_text()), path
