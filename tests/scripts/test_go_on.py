"""scripts/check all leaves out what has passed before, as long as nothing that it rests on has changed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from go_on import GoOn

def pytest_configure(config):
    config.pluginmanager.register(GoOn(config.rootpath))
"""


@pytest.fixture
def tree(tmp_path):
    """A module and two files of tests, of which one fails."""
    for name, text in {
        "drl_cli/one.py": "ONE = 1\n",
        "tests/conftest.py": CONFTEST,
        "tests/test_good.py": "def test_good():\n    pass\n",
        "tests/test_bad.py": "def test_bad():\n    assert False\n\n\ndef test_other():\n    pass\n",
        "pyproject.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(tree):
    """The exit code, and the tests that were run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", tree, "tests"],
        **{"cwd": tree, "capture_output": True, "text": True, "timeout": 60},
    )
    lines = [line.partition("::")[2].split()[0] for line in done.stdout.splitlines() if re.match("tests.*::", line)]
    return done.returncode, lines


@pytest.mark.slow
def test_what_passed_is_left_out_until_something_changes(tree):
    assert names(tree) == (1, ["test_bad", "test_other", "test_good"])
    assert names(tree) == (1, ["test_bad"])
    (tree / "tests" / "test_bad.py").write_text("def test_bad():\n    pass\n")
    assert names(tree) == (0, ["test_bad"])
    assert names(tree) == (0, [])
    (tree / "drl_cli" / "one.py").write_text("ONE = 2\n")
    assert names(tree) == (0, ["test_bad", "test_good"])
