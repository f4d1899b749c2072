"""The commands of knowing.md and troubleshooting.md run in this process; `| grep` gets their output.

Commands that train are composed and checked in test_docs.py.
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ANSWERS = ("explain=true", "--help", "-sc")
OPTIONS = {"bench": ["dry_run=true"], "doctor": ["ray=false"]}


def commands(page):
    """Return the commands of a page that print an answer: lines in blocks of code, without those that train."""
    blocks = re.findall(r"```\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("drl-") and ("drl-train" not in line or has_answer(line))]


def has_answer(line):
    return any(word in line for word in ANSWERS)


LINES = dict.fromkeys([*commands("knowing.md"), *commands("troubleshooting.md")])


@pytest.fixture
def here(small_run, monkeypatch):
    monkeypatch.chdir(small_run.cwd)


def test_the_pages_have_commands():
    assert len(LINES) > 20


@pytest.mark.slow
def test_the_commands_of_the_docs_print_an_answer(here, drl_here):
    outputs = {}
    for line in LINES:
        command, _, rest = line.partition(" | ")
        name, *words = shlex.split(command, comments=True)
        name = name.removeprefix("drl-")
        words = tuple(dict.fromkeys([*words, *OPTIONS.get(name, [])]))
        if (name, words) not in outputs:
            outputs[name, words] = drl_here(name, *words)
        done = outputs[name, words]
        assert (done.returncode, done.stderr) == (0, ""), line
        if rest:
            subprocess.run(["bash", "-c", rest], input=done.stdout, text=True, check=True)
        assert done.stdout or name == "bench", line
