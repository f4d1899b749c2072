"""A process that is killed at any file operation of saving, removing and resuming loses no checkpoint and no record.

An audit hook ends the "process" by an exception at the n-th operation that changes files, and refuses all later ones.
"""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from choices import some
from graphs import TINY, make_config

from drl_cli.run_folder import checkpoint, pruning, truncation
from drl_cli.run_folder.checkpoint_writer import CheckpointWriter, Draft
from drl_cli.run_folder.resume import choose
from drl_cli.run_folder.truncation import cut_back
from drl_cli.types import LoadParams
from drl_cli.utils.run_clock import RunClock

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Killed(BaseException):
    """The process ends."""


class Kill:
    """Raises Killed at operation number `at`, counted from 0, and at all later ones. `count` is their number."""

    def __init__(self):
        self.at, self.count, self.is_on = 0, 0, False

    def __call__(self, event, args):
        if self.is_on and (event in CHANGES or (event == "open" and args[2] & WRITES)):
            self.count += 1
            if self.count > self.at:
                raise Killed


KILL = Kill()


@pytest.fixture(scope="session", autouse=True)
def hook():
    """An audit hook can't be removed; it does nothing while `is_on` is false."""
    sys.addaudithook(KILL)


def killed(at, live, *args):
    """Return whether `live(*args)` is killed at operation number `at`."""
    KILL.at, KILL.count, KILL.is_on = at, 0, True
    try:
        live(*args)
    except Killed:
        return True
    finally:
        KILL.is_on = False
    return False


def save(run, position, keep_last=3):
    root, header = run / "checkpoints", LoadParams(position, position, position)
    draft = checkpoint.make_draft(checkpoint.free_folder(root, position, position))
    sums = {checkpoint.COUNTERS: checkpoint.write_json(draft / checkpoint.COUNTERS, {"counts": counts(position)})}
    folder = checkpoint.free_folder(root, position, position)
    checkpoint.finish(draft, folder, header, np.zeros(3, np.float32), sums, {}, name="last")
    truncation.remove_left_behind(root)
    pruning.prune(root, keep_last)


def save_best(run, position, mean):
    root, header = run / "checkpoints", LoadParams(position, position, position)
    folder = checkpoint.free_folder(root, position, position, "-best")
    checkpoint.save_model(folder, header, np.zeros(3, np.float32), {"mean": mean}, name="best")
    pruning.prune_best(root)


def counts(position):
    return {"env_steps": position, "opt_steps": position}


def record(run, *positions):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"env_steps": position}) + "\n" for position in positions)
    with (run / "eval.csv").open("a") as file:
        file.writelines(f"{position},{position},0.5\n" for position in positions)


def recorded(run):
    lines = [json.loads(line)["env_steps"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [int(line.split(",")[0]) for line in (run / "eval.csv").read_text().splitlines()[1:]]
    assert lines == rows
    return lines


def whole(run):
    return {path.name for path in pruning.checkpoints(run / "checkpoints") if not damaged(path)}


def damaged(path):
    return checkpoint.damaged_files(path, checkpoint.read_manifest(path))


def best_mean(run):
    found = pruning.best_model(run / "checkpoints")
    return checkpoint.read_manifest(found)["mean"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with checkpoints at 100, 200 and 300, records up to 340, and a best model of mean 5."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # waits for the disk
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "eval.csv").write_text("env_steps,opt_steps,mean\n")
    for position in (100, 200, 300):
        record(folder, position - 50, position)
        save(folder, position)
    save_best(folder, 200, 5.0)
    record(folder, 340)
    return folder


def life(run, named=None):
    """Resume, record, save a better model and two checkpoints, as a process that may be killed at any time."""
    base = choose(run, named, needs_replay=True)
    cut_back(run, base, RunClock())
    position = base.env_steps
    for step in (30, 60):
        record(run, position + step)
        save_best(run, position + step, 5.0 + position + step)
        save(run, position + step, keep_last=2)
    record(run, position + 90)


BEFORE = [50, 100, 150, 200, 250, 300, 340]


@pytest.fixture(params=some([1, 3], 3), ids=["every operation", "every third operation"])
def pace(request):
    return request.param


def copies(run, pace):
    """Yield copies of the run with the number of the operation at which the next process has to be killed."""
    for at in range(0, 10_000, pace):
        copy = run.with_name(f"copy{at}")
        shutil.copytree(run, copy, symlinks=True)
        yield at, copy
        shutil.rmtree(copy)


def test_a_run_killed_at_any_operation_resumes_from_its_newest_complete_checkpoint(run, pace):
    for at, copy in copies(run, pace):
        is_killed = killed(at, life, copy)
        newest, mean = max(whole(copy)), best_mean(copy)
        assert newest >= "step_000000300", at
        assert mean >= 5.0
        assert mean == max(checkpoint.read_manifest(path)["mean"] for path in copy.glob("checkpoints/step_*-best"))
        base = choose(copy, None, needs_replay=True)
        assert base.folder.name == newest, at
        cut_back(copy, base, RunClock())
        assert recorded(copy) == [*BEFORE[:-1], *range(330, base.env_steps + 1, 30)], at
        assert checkpoint.read_manifest(copy / "checkpoints" / "best")["mean"] == mean
        life(copy)
        assert whole(copy) == {f"step_{base.env_steps + step:09d}" for step in (30, 60)}
        assert not [path for path in copy.iterdir() if path.name.startswith(".")]
        assert not [path for path in (copy / "checkpoints").iterdir() if path.name.startswith(".")]
        if not is_killed:
            break
    assert at > 60


def test_a_run_that_is_killed_twice_before_its_first_new_checkpoint_still_has_its_old_state(run, pace):
    """The first process resumes from an older checkpoint, and both are killed at every operation before the save."""
    for at, copy in copies(run, pace):
        older = copy / "checkpoints" / "step_000000100"
        for _ in range(2):
            assert killed(at, life, copy, older)
        if len(list(copy.glob("checkpoints/step_*[0-9]"))) > 3:  # the new checkpoint
            break
        assert whole(copy) == {f"step_{position:09d}" for position in (100, 200, 300)}
        newest = choose(copy, copy / "checkpoints" / "step_000000300", needs_replay=True)
        cut_back(copy, newest, RunClock())
        assert recorded(copy) == BEFORE[:-1], at
        life(copy)
        assert recorded(copy) == [*BEFORE[:-1], 330, 360, 390]
    assert at > 30


def test_final_weights_that_were_saved_alone_do_not_end_a_resume(run):
    """After a resume from 100, no checkpoint fits on the disk. The old checkpoints and their records stay."""
    cut_back(run, choose(run, run / "checkpoints" / "step_000000100", needs_replay=True), RunClock())
    record(run, 130)
    checkpoint.save_model(run / "checkpoints" / "step_000000130", LoadParams(1, 130, 130), np.zeros(3), {})
    assert choose(run, None, needs_replay=True).env_steps == 100
    cut_back(run, choose(run, run / "checkpoints" / "step_000000300", needs_replay=True), RunClock())
    assert recorded(run) == BEFORE[:-1]


def test_a_second_resume_from_the_same_checkpoint_keeps_what_the_first_has_recorded_up_to_it(run):
    """For example the evaluation of the checkpoint's version by a run that ends before its next checkpoint."""
    base = choose(run, None, needs_replay=True)
    cut_back(run, base, RunClock())
    with (run / "eval.csv").open("a") as file:
        file.write("299,299,0.5\n")
    cut_back(run, base, RunClock())
    assert "299,299,0.5" in (run / "eval.csv").read_text()


def test_a_full_disk_costs_only_checkpoints_that_last_replaces(run):
    root = run / "checkpoints"
    cut_back(run, choose(run, root / "step_000000200", needs_replay=True), RunClock())
    assert [path.name for path in pruning.replaced(root)] == ["step_000000100"]


@pytest.mark.parametrize("text", ["", "[]", '{"base": 1}', '{"base":"","steps":[],"behind":[],"records":{"../a":1}}'])
def test_a_damaged_list_of_what_a_resume_left_behind_is_ignored(run, text):
    cut_back(run, choose(run, None, needs_replay=True), RunClock())
    (run / truncation.FOLDER / truncation.LIST).write_text(text)
    assert truncation.left_behind(run) is None
    cut_back(run, choose(run, None, needs_replay=True), RunClock())
    assert recorded(run) == BEFORE[:-1]
    assert truncation.left_behind(run).base == "step_000000300"


@pytest.mark.slow
def test_checkpoints_and_records_that_a_resume_left_behind_are_removed_after_the_first_new_checkpoint(run, pace):
    for at, copy in copies(run, pace):
        is_killed = killed(at, life, copy, copy / "checkpoints" / "step_000000100")
        base = choose(copy, None, needs_replay=True)
        has_new = not {"step_000000130", "step_000000160"}.isdisjoint(whole(copy))
        if has_new:
            assert base.env_steps == max(position for position in (130, 160) if f"step_{position:09d}" in whole(copy))
            cut_back(copy, base, RunClock())
            assert recorded(copy) == [50, 100, *range(130, base.env_steps + 1, 30)], at
            life(copy)
            assert whole(copy) == {f"step_{base.env_steps + step:09d}" for step in (30, 60)}
        if not is_killed:
            break
    assert has_new


def test_the_writer_removes_what_a_resume_left_behind(run):
    cut_back(run, choose(run, None, needs_replay=True), RunClock())
    assert truncation.left_behind(run) is not None
    writer, root = CheckpointWriter(make_config(*TINY), run), run / "checkpoints"
    path = checkpoint.make_draft(checkpoint.free_folder(root, 900, 900))
    draft = Draft(str(path), LoadParams(900, 900, 900), {"counts": counts(900)}, {}, ())
    assert writer.commit(draft, np.zeros(3, np.float32)) == str(root / "step_000000900")
    assert truncation.left_behind(run) is None
