"""Pytest plugin for `--go-on`, which skips tests that passed with the same code, packages and test file."""

import hashlib
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest

SHARED = ("drl_cli", "conf", "docs", "scripts", "tests/support", "tests/surface.txt", ".ci", ".github")
KEPT = 20_000


class GoOn:
    """`file` has a line for each passed test: a digest of everything it depends on, and its name."""

    def __init__(self, root: Path, writes: bool = True) -> None:
        self.root, self.file, self.writes = root, root / ".check" / "passed", writes
        lines = self.file.read_text().splitlines()[-KEPT:] if self.file.exists() else []
        self.passed = set(lines)
        self.failed: set[str] = set()
        shared = [path for name in SHARED for path in _files(root / name)]
        at_root = [path for path in root.iterdir() if path.is_file()]
        self.shared = _digest(root, [*shared, *at_root, *root.glob("tests/**/conftest.py")])
        self.shared += "".join(sorted(f"{package.name}{package.version}" for package in distributions())) + sys.version
        self.line = cache(self._line)

    def pytest_collection_modifyitems(self, config, items) -> None:
        before = [item for item in items if self.line(item.nodeid) in self.passed]
        if before:
            config.hook.pytest_deselected(items=before)
            items[:] = [item for item in items if self.line(item.nodeid) not in self.passed]

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif self.writes and report.when == "teardown" and report.nodeid not in self.failed:
            self.file.parent.mkdir(exist_ok=True)
            with self.file.open("a") as file:
                print(self.line(report.nodeid), file=file)

    def pytest_sessionfinish(self, session, exitstatus) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed:  # with xdist, its workers leave tests out
            session.exitstatus = pytest.ExitCode.OK

    def _line(self, name: str) -> str:
        file = name.partition("::")[0]
        return f"{hashlib.sha256((self.shared + _digest(self.root, [self.root / file])).encode()).hexdigest()} {name}"


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc"]


def _digest(root: Path, files: list[Path]) -> str:
    parts = (str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() for file in sorted(files))
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
