"""A small disk: a run continues, its checkpoints stay readable, and lost final weights end it with exit code 7."""

import subprocess
from contextlib import suppress

import pytest
from processes import SMALL
from records import check_checkpoints, metrics_steps

from drl_cli.run_folder.checkpoint import open_checkpoint

SIZE_MB = 160  # more than the 64 MiB that saving the replay leaves free
NOT_SAVED = "error: the final weights could not be saved: "
WARNINGS = (
    *("the replay is left out of a checkpoint: ", "a checkpoint could not be saved: ", "manage failed: OSError: "),
    "the summary could not be written: ",
    "step_00000",  # has only the final weights
)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of SIZE_MB. The test needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    (tmp_path / "outputs").symlink_to(folder)  # the output files of the runs are on the other disk
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path):
    """Fill a disk completely."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(2**12))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "single"])
@pytest.mark.exhaustive
def test_a_run_on_a_full_disk_continues_to_its_end(start, small_disk, mode):
    ballast = small_disk / "ballast"
    run = start(*SMALL, f"mode={mode}", "total_env_steps=6000", "checkpoint.keep_last=20")
    run.until(lambda: run.saved >= 400)
    fill(ballast)
    full, saved = max(metrics_steps(run.folder), default=0), run.saved
    assert run.wait() == 0, run.err
    assert full < 6000
    assert "done: best return" in run.out
    said = run.err.splitlines()
    for warning in WARNINGS:
        assert sum(line.startswith(f"warning: {warning}") for line in said) <= 1, run.err
    assert any(line.startswith((f"warning: {WARNINGS[0]}", f"warning: {WARNINGS[1]}")) for line in said)
    assert all(line.startswith(tuple(f"warning: {warning}" for warning in WARNINGS)) for line in said), run.err
    last = open_checkpoint(run.folder / "checkpoints" / "last")
    assert saved <= last.env_steps
    assert check_checkpoints(run.folder)[-1] >= 5900  # the final version; async may publish it before the last steps
    ballast.unlink()
    again = start("resume=latest", "total_env_steps=8000")
    assert again.wait() == 0, again.err
    assert not (run.folder / ".reserve").exists()
    assert open_checkpoint(run.folder / "checkpoints" / "last").has_replay
    check_checkpoints(run.folder)


@pytest.mark.slow
def test_a_run_does_not_begin_on_a_full_disk(start, small_disk):
    fill(small_disk / "ballast")
    run = start(*SMALL)
    assert run.wait() == 7
    (line,) = run.err.splitlines()
    assert line.startswith("error: output_dir: less than 50 MB are free at ")
    assert list(small_disk.iterdir()) == [small_disk / "ballast"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_is_resumed_on_a_full_disk_ends_with_exit_code_7(start, small_disk):
    args = (*SMALL, "network.hidden=[256,256]", "checkpoint.keep_last=1", "mode=single", "total_env_steps=800")
    assert start(*args).wait() == 0
    ballast = small_disk / "ballast"
    fill(ballast)
    with ballast.open("ab") as file:
        file.truncate(ballast.stat().st_size - 2**14)  # room for the files with which a run begins
    run = start("resume=latest", "total_env_steps=1600")
    assert run.wait() == 7, run.err
    assert NOT_SAVED in run.err
    assert "last saved: step 800 of 1,600" in run.out
    ballast.unlink()
    again = start("resume=latest", "total_env_steps=1600")
    assert again.wait() == 0, again.err
    assert open_checkpoint(again.folder / "checkpoints" / "last").env_steps == 1600
