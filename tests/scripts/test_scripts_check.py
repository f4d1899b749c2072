import shutil
import subprocess
from pathlib import Path

import pytest

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
