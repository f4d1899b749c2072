"""What docs/after-training.md shows works as it is written there."""

import re
import shutil
from pathlib import Path

import pytest

from drl_cli.cli import eval, export, play
from drl_cli.settings.options import parse

PAGE = (Path(__file__).parents[2] / "docs" / "after-training.md").read_text()
COMMANDS = {"drl-eval": eval, "drl-export": export, "drl-play": play}


@pytest.fixture
def there(small_run, tmp_path, monkeypatch):
    """A folder with the small run in it."""
    shutil.copytree(small_run.cwd / "outputs", tmp_path / "outputs", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_its_python_runs(there, tiny, monkeypatch, capsys):
    import drl_cli

    train = drl_cli.train
    monkeypatch.setattr(drl_cli, "train", lambda overrides: train([*overrides, *tiny]))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
    assert "160" in capsys.readouterr().out


def test_its_commands_have_these_options(there):
    lines = re.findall(r"^(drl-\w+) (.*)$", PAGE, re.MULTILINE)
    assert {command for command, _ in lines} >= {"drl-export", "drl-play"}
    for command, words in lines:
        if command in COMMANDS:
            assert parse(words.split("#")[0].split(), COMMANDS[command].Options, positional="run").run


@pytest.mark.slow
def test_its_exports_and_videos_are_made(there):
    for command, words in re.findall(r"^(drl-export|drl-play) (.*)$", PAGE, re.MULTILINE):
        options = parse([*words.split(), "max_steps=20"] if command == "drl-play" else words.split(),
                        COMMANDS[command].Options, positional="run")  # fmt: skip
        (play.play if command == "drl-play" else export.export)(options)
    assert len(list(there.glob("outputs/*/*/*/export/*/policy.py"))) == 3
    assert len(list(there.glob("outputs/*/*/*/videos/*"))) == 3
