"""Every command in these pages of docs/ is run, by bash, in a folder with one run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import drl_cli
from drl_cli.cli.complete import commands

DOCS = Path(drl_cli.__file__).parents[1] / "docs"
PAGES = ("knowing.md", "troubleshooting.md")
SHORT = {"bench": "dry_run=true", "doctor": "ray=false"}
NOTHING_TO_DO = ("explain=true", "dry_run=true", "--help", "-sc")


def typed(page):
    """The lines of a page's blocks that are commands."""
    blocks = re.findall(r"```\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("drl-", "eval "))]


CASES = [(page, line) for page in PAGES for line in typed(page)]


@pytest.fixture(scope="module")
def shell(small_run, tmp_path_factory):
    """Run a line where small_run is. drl-train only checks, drl-doctor leaves Ray out, drl-bench measures nothing."""
    place = tmp_path_factory.mktemp("bin")
    for name in {*commands(), "drl-doctor"}:
        module = name.removeprefix("drl-")
        skip = "|".join(f"*' {word} '*" for word in NOTHING_TO_DO)
        short = SHORT.get(module, "")
        dry = f'case " $* " in {skip}) ;; *) set -- "$@" dry_run=true ;; esac\n' if module == "train" else ""
        path = place / name
        path.write_text(f'#!/bin/sh\n{dry}exec {sys.executable} -m drl_cli.cli.{module} "$@" {short}\n')
        path.chmod(0o755)

    def run(line):
        env = os.environ | {"PATH": f"{place}:{os.environ['PATH']}"}
        command = ["bash", "-o", "pipefail", "-c", line]
        return subprocess.run(command, cwd=small_run.cwd, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_the_pages_have_commands():
    assert all(len(typed(page)) > 5 for page in PAGES)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), CASES, ids=[line for _, line in CASES])
def test_a_command_of_the_docs_does_what_it_is_there_for(shell, page, line):
    done = shell(line)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout or line.startswith(("eval ", "drl-bench "))
