"""The page of the first ten minutes: what it shows is what its commands print."""

import subprocess
import sys
from pathlib import Path

import pytest

from drl_cli.deploy.video import find_ffmpeg

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(find_ffmpeg() is None, reason="its video is an mp4: pip install -e '.[video]'")
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_print_what_it_shows():
    page = ROOT / "docs" / "first-ten-minutes.md"
    done = subprocess.run([sys.executable, ROOT / "scripts" / "transcript", page], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_line_that_is_printed_no_more_is_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ drl-list modes\nsingle   as it is not said\n```\n")
    done = subprocess.run([sys.executable, ROOT / "scripts" / "transcript", page], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == "$ drl-list modes\n  no longer prints: single   as it is not said\n"
