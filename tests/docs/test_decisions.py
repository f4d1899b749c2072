"""Every decision record has a number, a date and three parts, and the index lists it."""

import re
from datetime import date
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_one_dated_page(path):
    text = path.read_text()
    assert text.startswith(f"# {path.name[:3]} ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Question", "Decided", "Measured"]
    (recorded,) = re.findall(r"^Recorded: (\S+)\.", text, re.MULTILINE)
    assert date.fromisoformat(recorded) >= date(2026, 11, 1)
    assert len(text.splitlines()) <= 100
    question = re.search(r"## Question\n\n(.*)\n", text)[1]
    assert f"| [{path.name[:3]}]({path.name}) | {recorded} | {question} |" in (FOLDER / "README.md").read_text()


def test_the_numbers_are_consecutive():
    assert [int(path.name[:3]) for path in RECORDS] == [*range(1, len(RECORDS) + 1)]
