"""The site of the documentation needs no other server, works from a disk, and shows what the pages say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_a_page_has_no_html(path):
    """A browser shows nothing for `<env>` outside of code. `&lt;env>` is shown."""
    text = re.sub(r"```.*?```|^ {4}.*?$|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"<\w", text)


@pytest.mark.slow
def test_the_site_loads_nothing_from_another_server_and_links_to_files(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    assert len(pages) == len(DOCS)
    assert (tmp_path / "search" / "search_index.js").is_file()
    for path, text in pages.items():
        loaded = re.findall(r'\bsrc="([^"]*)"|<link rel="(?:stylesheet|icon)" href="([^"]*)"', text)
        linked = re.findall(r'<a href="(?!https?:|#)([^"#?]*)', text)
        assert len(loaded) >= 4
        for name in {*(first or second for first, second in loaded), *linked} - {".", ""}:
            assert (path.parent / name).is_file(), (path.name, name)
