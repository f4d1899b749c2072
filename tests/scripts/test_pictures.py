"""scripts/pictures: which pictures are drawn, and where to. What they show takes minutes, and is drawn by hand."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "pictures"


@pytest.fixture
def pictures(monkeypatch):
    """The script as a module, and `typed`, the commands it ran; each leaves a file behind, named after the command."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("pictures", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("pictures", loader))
    loader.exec_module(module)
    module.typed = []

    def run(command, *args, cwd):
        module.typed.append((command, *args))
        (cwd / f"{command}.png").write_text(command)

    monkeypatch.setattr(module, "drl", run)
    return module


def test_the_comparison_is_of_runs_made_for_it(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pictures", "compare", "--to", str(tmp_path / "new")])
    pictures.main()
    assert [command for command, *_ in pictures.typed] == ["train", "compare"]
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == {"compare.png": "compare"}


def test_a_long_one_is_drawn_only_where_it_is_named(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "DRAWN", {"compare": pictures.compare, "pong": pictures.pong})
    for names in ([], ["pong"]):
        monkeypatch.setattr(sys, "argv", ["pictures", *names, "--to", str(tmp_path / "-".join(["to", *names]))])
        pictures.main()
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["compare.png"]
    assert [path.name for path in (tmp_path / "to-pong").iterdir()] == ["pong.png"]


def test_its_commands_are_right(pictures, tmp_path):
    from drl_cli.cli import compare, play
    from drl_cli.settings.check import check_command
    from drl_cli.settings.command_line import read_command
    from drl_cli.settings.options import parse

    pictures.compare(tmp_path)
    pictures.pong(tmp_path)
    with pytest.raises(ValueError, match="not enough values"):  # of films, where nothing is run
        pictures.video(tmp_path)
    for command, *args in pictures.typed:
        if command == "train":
            check_command(read_command(args))
        else:
            module, positional = {"compare": (compare, "runs"), "play": (play, "run")}[command]
            parse(args, module.Options, positional=positional)


def test_the_page_needs_a_browser(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"tensorboard\.png needs chromium"):
        pictures.tensorboard(tmp_path)
    assert pictures.typed == []


def test_every_picture_of_the_docs_is_drawn_here(pictures):
    shown = {path.stem for path in (SCRIPT.parents[1] / "docs" / "pictures").iterdir()}
    assert shown == pictures.DRAWN.keys()


def test_a_picture_that_there_is_not(pictures, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pictures", "nope"])
    with pytest.raises(SystemExit) as caught:
        pictures.main()
    assert caught.value.code == 2
    assert "no picture nope; there are compare" in capsys.readouterr().err
