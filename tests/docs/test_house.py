"""The tree that CONTRIBUTING draws is the tree, and no room is too large to look through."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "drl_cli"
LARGEST_SHARE, MOST_FILES, MOST_COMMANDS = 0.15, 20, 16


def rooms():
    """Return the folders of the package that hold Python files, with the files directly in each."""
    folders = [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    return {folder: files for folder in folders if (files := sorted(folder.glob("*.py")))}


def drawn():
    """Return the names of the tree in CONTRIBUTING: files and folders, these with a slash at the end."""
    block = re.search(
        r"## Where things are\n+(?:.*\n)*?```\w*\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    return set(re.findall(r"(?<![\w/])[\w./-]+(?:/|\.py)(?![\w])", block[1]))


def test_every_room_is_drawn_and_every_drawn_path_exists():
    names = drawn()
    for folder in rooms().keys() - {PACKAGE}:
        assert {f"{folder.name}/", f"{folder.relative_to(ROOT)}/"} & names, f"CONTRIBUTING does not show {folder}"
    places = (ROOT, PACKAGE, PACKAGE / "runtime", PACKAGE / "envs")
    for name in names:
        found = any((place / name).exists() for place in places) or any(PACKAGE.rglob(name.rstrip("/")))
        assert found, f"CONTRIBUTING shows {name}, which does not exist"


def test_no_room_is_too_large():
    lines = {folder: sum(len(file.read_text().splitlines()) for file in files) for folder, files in rooms().items()}
    total = sum(lines.values())
    for folder, files in rooms().items():
        assert lines[folder] <= LARGEST_SHARE * total, f"{folder} holds {lines[folder]} of {total} lines"
        assert len(files) <= MOST_FILES, f"{folder} holds {len(files)} files"
    assert len(rooms()[PACKAGE / "cli"]) <= MOST_COMMANDS
