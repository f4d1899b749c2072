"""docs/first-ten-minutes.md shows the output of its commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from drl_cli.deploy.play import find_ffmpeg

ROOT = Path(__file__).parents[2]


def transcript(page):
    return subprocess.run([sys.executable, ROOT / "scripts" / "transcript", page], capture_output=True, text=True)


@pytest.mark.skipif(find_ffmpeg() is None, reason="its video is an mp4: pip install -e '.[video]'")
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_print_what_it_shows():
    done = transcript(ROOT / "docs" / "first-ten-minutes.md")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_line_that_is_no_longer_printed_is_reported(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ drl-list modes\nsingle   an old line\n```\n")
    done = transcript(page)
    assert (done.returncode, done.stdout) == (1, "$ drl-list modes\n  no longer prints: single   an old line\n")
