"""scripts/pictures: which pictures are drawn and where. Drawing takes minutes and is not tested."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from drl_cli.cli import compare, play
from drl_cli.metrics.status import Status
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.options import parse

SCRIPT = Path(__file__).parents[2] / "scripts" / "pictures"


@pytest.fixture
def pictures(monkeypatch):
    """The script as a module. `typed` are the commands that it ran; each one leaves a file named after the command."""
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


def test_a_long_picture_is_only_drawn_by_name(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "DRAWN", {"compare": pictures.compare, "pong": pictures.pong})
    for names, drawn in (([], ["compare.png"]), (["pong"], ["pong.png"])):
        place = tmp_path / "-".join(["to", *names])
        monkeypatch.setattr(sys, "argv", ["pictures", *names, "--to", str(place)])
        pictures.main()
        assert [path.name for path in place.iterdir()] == drawn
    assert [command for command, *_ in pictures.typed[:2]] == ["train", "compare"]


def test_its_commands_are_right(pictures, tmp_path):
    pictures.compare(tmp_path)
    pictures.pong(tmp_path)
    with pytest.raises(ValueError, match="not enough values"):  # there are no videos, because nothing runs
        pictures.video(tmp_path)
    for command, *args in pictures.typed:
        if command == "train":
            check_command(read_command(args))
        else:
            module, positional = {"compare": (compare, "runs"), "play": (play, "run")}[command]
            parse(args, module.Options, positional=positional)


def test_the_panel_is_drawn_from_the_status_of_a_run(pictures, monkeypatch, tmp_path):
    typed = []

    def status_of_a_run(folder, evaluations, *args):
        typed.extend(args)
        return Status(title="a run", state="running", env_steps=7, total_env_steps=100, train_return=1.5)

    monkeypatch.setattr(pictures, "status_of_a_run", status_of_a_run)
    (svg,) = pictures.panel(tmp_path).values()
    text = svg.decode().replace("&#160;", " ")
    assert text.startswith("<svg")
    assert "a run" in text
    assert "return 1.5" in text
    check_command(read_command(typed))


def test_every_picture_of_the_docs_is_drawn_here(pictures):
    shown = {path.stem for path in (SCRIPT.parents[1] / "docs" / "pictures").iterdir()}
    table = yaml.safe_load((SCRIPT.parent / "bench/learn.yaml").read_text())
    of_results = {Path(file).stem for file in table["pictures"].values()}  # drawn by learn.py --draw
    assert shown == {*pictures.DRAWN, *of_results, "staleness"}  # staleness: of a study that ended
