"""The package is typed: a user's program passes mypy --strict, and a misspelt name is an error there."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_strict_mypy_accepts_a_users_program(tmp_path):
    shutil.copy(ROOT / "tests" / "docs" / "typed_user.py", tmp_path / "user.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".check" / "mypy", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "Success: no issues found in 1 source file\n"
