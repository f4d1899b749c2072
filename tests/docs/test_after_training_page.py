"""The Python code and the commands of docs/after-training.md work."""

import re
import shutil
from pathlib import Path

import pytest
from pages import blocks

import drl_cli
from drl_cli.cli import export, play
from drl_cli.settings.options import parse

PAGE = (Path(__file__).parents[2] / "docs" / "after-training.md").read_text()
COMMANDS = {"drl-export": export, "drl-play": play}


@pytest.fixture
def folder(small_run, tmp_path, monkeypatch):
    shutil.copytree(small_run.cwd / "outputs", tmp_path / "outputs", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_its_python_runs(folder, tiny, monkeypatch, capsys):
    train = drl_cli.train
    monkeypatch.setattr(drl_cli, "train", lambda words, **options: train([*words.split(), *tiny], **options))
    for block in blocks("after-training.md"):
        exec(block, {})
    assert "160" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive
def test_its_exports_and_videos_are_made(folder):
    for command, words in re.findall(r"^(drl-export|drl-play) (.*)$", PAGE, re.MULTILINE):
        words = [word for word in words.split() if not word.startswith("episodes=") or command == "drl-play"]
        words.append("max_steps=5" if command == "drl-play" else "episodes=1")
        module = COMMANDS[command]
        getattr(module, command.removeprefix("drl-"))(parse(words, module.Options, positional="run"))
    assert len(list(folder.glob("outputs/*/*/*/export/*/policy.py"))) == 4
    assert len(list(folder.glob("outputs/*/*/*/videos/*"))) == 3
