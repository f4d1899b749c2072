import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from choices import evenly


class Item(NamedTuple):
    nodeid: str


CHECK = Path(__file__).parents[2] / "scripts" / "check"


@pytest.mark.parametrize("has_python", [False, True])
def test_missing_packages_are_named(tmp_path, has_python):
    (tmp_path / "scripts").mkdir()
    shutil.copy(CHECK, tmp_path / "scripts" / "check")
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("dirname", "bash"):
        (folder / name).symlink_to(shutil.which(name))
    if has_python:  # imports everything, but there is no ruff
        (folder / "python").write_text("#!/usr/bin/env bash\n")
        (folder / "python").chmod(0o755)
        (folder / "env").symlink_to(shutil.which("env"))
    done = subprocess.run(
        ["bash", str(tmp_path / "scripts" / "check")], env={"PATH": str(folder)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "scripts/check needs the packages of the extra dev:  pip install -e '.[dev]'\n"


def test_a_quick_check_has_evenly_spaced_cases_of_every_test():
    names = ["a", *(f"b[{i}]" for i in range(9)), *(f"c[{i}]" for i in range(4)), "b_more[0]"]
    items = [Item(name) for name in names]
    taken = evenly(items, 4)
    assert [item.nodeid for item in items if item in taken] == [
        "a",
        "b[0]",
        "b[3]",
        "b[5]",
        "b[7]",
        "c[0]",
        "c[1]",
        "c[2]",
        "c[3]",
        "b_more[0]",
    ]
