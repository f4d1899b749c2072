"""Files that the documentation names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page):
    named = re.findall(r"([\w/]*\btest_\w+\.py)(?:::(\w+))?", (ROOT / "docs" / page).read_text())
    for path, test in named:
        (file,) = (ROOT / "tests").rglob(path) if "/" not in path else [ROOT / "tests" / path]
        assert file.is_file(), path
        assert f"def {test}" in file.read_text(), test


def test_every_module_of_the_architecture_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    names = [name for name in re.findall(r"`([\w/.]+\.py|[\w/]+/)`", page) if not name.startswith("<")]
    assert len(names) > 20
    package = ROOT / "drl_cli"
    for name in names:
        folders = (ROOT, package, package / "runtime", package / "replay", package / "runtime" / "orchestrator")
        assert any((folder / name).exists() for folder in folders), name
