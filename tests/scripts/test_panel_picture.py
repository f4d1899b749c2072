"""scripts/pictures panel: the panel of a run, as SVG."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

from drl_cli.metrics.status import Status
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command

SCRIPT = Path(__file__).parents[2] / "scripts" / "pictures"


def test_the_panel_is_drawn_from_the_status_of_a_run(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("pictures", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("pictures", loader))
    loader.exec_module(module)
    typed = []

    def status_of_a_run(folder, evaluations, *args):
        typed.extend(args)
        return Status(title="a run", state="running", env_steps=7, total_env_steps=100, train_return=1.5)

    monkeypatch.setattr(module, "status_of_a_run", status_of_a_run)
    (svg,) = module.panel(tmp_path).values()
    text = svg.decode().replace("&#160;", " ")
    assert text.startswith("<svg")
    assert "a run" in text
    assert "return 1.5" in text
    check_command(read_command(typed))
