"""`pytest --go-on` skips the tests that passed before, until something that they depend on changes."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from go_on import GoOn

def pytest_configure(config):
    config.pluginmanager.register(GoOn(config.rootpath))
"""


@pytest.mark.slow
def test_tests_that_passed_are_skipped_until_something_changes(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # their imports take longer than these tests
    files = {
        "drl_cli/one.py": "ONE = 1\n",
        "tests/conftest.py": CONFTEST,
        "tests/test_good.py": "def test_good():\n    pass\n",
        "tests/test_bad.py": "def test_bad():\n    assert False\n\n\ndef test_other():\n    pass\n",
        "pyproject.toml": "",
    }

    def write(name, text):
        (pytester.path / name).parent.mkdir(exist_ok=True)
        (pytester.path / name).write_text(text)

    def ran():
        """Return the exit code and the names of the tests that ran."""
        result = pytester.inline_run("-p", "no:cacheprovider", "tests")
        reports = [report for report in result.getreports("pytest_runtest_logreport") if report.when == "call"]
        return result.ret, [report.nodeid.partition("::")[2] for report in reports]

    for name, text in files.items():
        write(name, text)
    assert (ran(), ran()) == ((1, ["test_bad", "test_other", "test_good"]), (1, ["test_bad"]))
    write("tests/test_bad.py", "def test_bad():\n    pass\n")
    assert (ran(), ran()) == ((0, ["test_bad"]), (0, []))
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "xdist", "-n", "1", "tests").ret == 0
    write("drl_cli/one.py", "ONE = 2\n")
    assert ran() == (0, ["test_bad", "test_good"])
