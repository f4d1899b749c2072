"""Every command of docs/compare-runs.md, typed where there are runs for it."""

import importlib
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from run_folders import make_run

PAGE = (Path(__file__).parents[2] / "docs" / "compare-runs.md").read_text()
COMMANDS = re.findall(r"^drl-.*", PAGE, re.MULTILINE)


@pytest.fixture
def runs(small_run, tmp_path, monkeypatch):
    """Three runs of CartPole, and after them one of Pendulum, which has a policy."""
    monkeypatch.chdir(tmp_path)
    for i, algo in enumerate(("dqn", "dqn", "ppo")):
        evals = [(100, 1.0, 100.0), (200, 2.0, 450.0)]
        changes = {"env__name": "CartPole-v1", "algo__name": algo, "algo__lr": 0.001, "seed": i}
        make_run(tmp_path / "outputs", f"20200101-s{i}", evals, **changes)
    folder = small_run.folder.relative_to(small_run.cwd)
    shutil.copytree(small_run.folder, folder, symlinks=True)


def test_there_are_commands():
    assert {command.split()[0] for command in COMMANDS} == {"drl-list", "drl-compare", "drl-eval"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_it_does_what_it_says(runs, command, monkeypatch, capsys):
    name, *args = shlex.split(re.sub(r"episodes=\d+", "episodes=2", command))
    if name == "drl-eval":
        shutil.rmtree("outputs/CartPole-v1")  # they have no policies
    monkeypatch.setattr(sys, "argv", [name, *args])
    importlib.import_module(f"drl_cli.cli.{name.removeprefix('drl-')}").main()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.strip() or "sweeps" in args
    made = {path.name for path in Path().glob("*.*")}
    named = set(re.findall(r"\b(?:figure|curves): (\S+)", captured.out))
    assert made == named
