"""Every command of docs/compare-runs.md runs on a few runs."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from run_folders import make_run

PAGE = (Path(__file__).parents[2] / "docs" / "compare-runs.md").read_text()
COMMANDS = re.findall(r"^drl-.*", PAGE, re.MULTILINE)


@pytest.fixture
def runs(small_run, tmp_path, monkeypatch):
    """Three runs of CartPole without policies, and a newer run of Pendulum with a policy."""
    monkeypatch.chdir(tmp_path)
    for i, algo in enumerate(("dqn", "dqn", "ppo")):
        evals = [(100, 1.0, 100.0), (200, 2.0, 450.0)]
        changes = {"env__name": "CartPole-v1", "algo__name": algo, "algo__lr": 0.001, "seed": i}
        make_run(tmp_path / "outputs", f"20200101-s{i}", evals, **changes)
    shutil.copytree(small_run.folder, small_run.folder.relative_to(small_run.cwd), symlinks=True)


@pytest.mark.slow
def test_the_commands_print_an_answer_and_make_the_files_they_name(runs, drl_here):
    assert {command.split()[0] for command in COMMANDS} == {"drl-list", "drl-compare", "drl-eval"}
    for command in sorted(COMMANDS, key=lambda command: command.startswith("drl-eval")):  # drl-eval needs policies
        name, *words = shlex.split(re.sub(r"episodes=\d+", "episodes=2", command))
        if name == "drl-eval":
            shutil.rmtree("outputs/CartPole-v1", ignore_errors=True)
        done = drl_here(name.removeprefix("drl-"), *words)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.strip() or "sweeps" in words, command
        made = {path.name for path in Path().glob("*.*")}
        assert made == set(re.findall(r"\b(?:figure|curves): (\S+)", done.stdout)), command
        for file in made:
            Path(file).unlink()
