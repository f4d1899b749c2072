"""Control characters of a text from a file never reach the terminal."""

import ast
import logging
import re
import sys
from pathlib import Path

import pytest

import drl_cli
from drl_cli.utils import shown as module
from drl_cli.utils.shown import Shown, cell, run_log, score_text, shown, tell


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


def test_the_file_has_all_messages_with_times_also_those_before_it_was_opened(tmp_path, capsys):
    log, path = logging.getLogger("drl_cli.somewhere"), tmp_path / "train.log"
    before = logging.getLogger("drl_cli").handlers[:]
    with run_log() as open_log:
        tell("warning: the first")
        log.warning("the second")
        open_log(path)
        log.info("the third")
        tell("error: the fourth")
    log.warning("too late")
    lines, times = path.read_text().splitlines(), r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    assert [re.sub(f"^{times}", "", line) for line in lines] == [
        "INFO warning: the first", "WARNING the second", "INFO the third", "INFO error: the fourth"
    ]  # fmt: skip
    assert all(re.match(times, line) for line in lines)
    shown = capsys.readouterr().err.splitlines()
    assert shown[:3] == ["warning: the first", "warning: the second", "error: the fourth"]
    assert logging.getLogger("drl_cli").handlers == before


def test_without_a_file_only_warnings_are_shown(capsys):
    with run_log():
        logging.getLogger("drl_cli.somewhere").info("hidden")
        tell("shown")
    assert capsys.readouterr().err == "shown\n"


def test_what_code_of_the_user_prints_is_in_the_file_too(tmp_path, capsys):
    path, before = tmp_path / "train.log", (sys.stdout, sys.stderr)
    with run_log() as open_log:
        print("early")
        open_log(path)
        print("a half", end="")
        print(" line\x1b")
        print("UserWarning: mind the step", file=sys.stderr)
        tell("once")
        assert sys.stdout.isatty() is False
    assert (sys.stdout, sys.stderr) == before
    texts = [re.sub(r"^\S+ \S+ INFO ", "", line) for line in path.read_text().splitlines()]
    assert texts == ["early", r"a half line\x1b", "UserWarning: mind the step", "once"]
    out, err = capsys.readouterr()
    assert out == "early\na half line\x1b\n"
    assert err == "UserWarning: mind the step\nonce\n"
