"""What users rely on (docs/compatibility.md) has not changed since it was recorded in tests/surface.txt."""

import difflib
import json
import re
import runpy
from pathlib import Path

import pytest

from drl_cli.run_folder.evaluations import EVAL_COLUMNS

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "surface.txt"
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "surface"))


def test_the_public_surface_is_the_recorded_one(script):
    recorded = RECORDED.read_text().splitlines()
    changed = [line for line in difflib.ndiff(recorded, script["surface"]()) if line[0] in "+-"]
    assert not changed, "\n".join(["scripts/surface > tests/surface.txt records this change:", *changed])


def test_the_recorded_lines_are_sorted_and_name_what_the_page_lists():
    lines = RECORDED.read_text().splitlines()
    assert lines == sorted(set(lines))
    for name in ("python drl_cli.train(", "python drl_cli.load(", "python drl_cli.api.Params.follow(self, tau)"):
        assert any(line.startswith(name) for line in lines), name
    for line in (
        "command drl-list runs",
        "exit   8 an incompatible checkpoint",
        "command drl-eval episodes: int >= 1 = 20",
    ):
        assert line in lines
    assert "key seed: int >= 0 = 0  [top level]" in lines
    assert not [line for line in lines if " at 0x" in line]


def test_a_changed_name_parameter_or_default_changes_a_line(script):
    described = script["described"]

    class Old:
        def act(self, obs, last=None):
            pass

    class New:
        def act(self, obs, previous=None):
            pass

    Old.__module__ = New.__module__ = "drl_cli.here"
    assert [*described("x.A", Old)] == ["python x.A()", "python x.A.act(self, obs, last=None)"]
    assert [*described("x.A", New)] == ["python x.A()", "python x.A.act(self, obs, previous=None)"]
    assert script["parameters"](lambda a: a) != script["parameters"](lambda a=1: a)


def test_the_files_of_a_run_have_what_the_page_promises(small_run):
    files = re.findall(r"`([\w./-]+)`", PAGE.partition("## The files of a run")[2].partition("| `videos/`")[0])
    for name in ("run.json", "config.yaml", "summary.json", "eval.csv", "metrics.jsonl"):
        assert name in files
        assert (small_run.folder / name).is_file()
    run = json.loads((small_run.folder / "run.json").read_text())
    (row,) = re.findall(r"^\| `run.json` \| (.*) \|$", PAGE, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", row)} <= run.keys()
    assert (small_run.folder / "eval.csv").read_text().partition("\n")[0].split(",")[: len(EVAL_COLUMNS)] == [
        *EVAL_COLUMNS
    ]
    series = {
        name.partition("/")[0] for line in (small_run.folder / "metrics.jsonl").open() for name in json.loads(line)
    }
    (row,) = re.findall(r"^\| `metrics.jsonl` .*$", PAGE, re.MULTILINE)
    assert {name for name in series if "/" in name} <= {*re.findall(r"`(\w+)/`", row)}
    for checkpoint in ("best", "last"):
        assert (small_run.folder / "checkpoints" / checkpoint / "model.safetensors").is_file()
