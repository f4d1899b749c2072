"""What a sweep knows of its jobs: from sweep.json, from the jobs' own files, from their runs' folders."""

import csv
import fcntl
import json

import pytest

from drl_cli.sweeps.job import Job
from drl_cli.sweeps.launcher import slots
from drl_cli.sweeps.sweep import Sweep

GRID = [["env=A", "seed=0", "algo.lr=1"], ["env=A", "seed=1", "algo.lr=1"], ["env=A", "seed=0", "algo.lr=2"]]


@pytest.fixture
def sweep(tmp_path):
    """Three jobs in a folder of their own."""
    made = Sweep(tmp_path, ["--config-name", "train"])
    made.add(GRID)
    made.make_folder(str(tmp_path))
    return made


def run_folder(sweep, job, exit_code=None, **files):
    """The folder of a run, which the job's file names; with a summary where it has ended."""
    run = sweep.folder.parent / f"run{job.number}"
    run.mkdir()
    sweep.file(job).write_text(json.dumps({"run": str(run)}))
    if exit_code is not None:
        files["summary.json"] = json.dumps({"exit_code": exit_code, "best_return": 2.5, "env_steps": 70, "wall_s": 3})
    for name, text in files.items():
        (run / name).write_text(text)
    return run


def test_jobs_are_numbered_from_one_and_differ_in_what_is_not_in_all_of_them(sweep):
    assert [(job.number, job.differs) for job in sweep.jobs] == [
        (1, {"seed": "0", "algo.lr": "1"}), (2, {"seed": "1", "algo.lr": "1"}), (3, {"seed": "0", "algo.lr": "2"})
    ]  # fmt: skip


def test_a_new_sweep_is_on_disk_before_a_job_starts(sweep):
    again = Sweep.open(sweep.folder)
    assert again.flags == ["--config-name", "train"]
    assert [(job.overrides, job.status, job.run) for job in again.jobs] == [(job, "waiting", None) for job in GRID]


def test_a_job_is_known_by_its_overrides_in_any_order(sweep):
    sweep.jobs[1].exit_code = 4
    (new,) = sweep.add([["seed=1", "algo.lr=1", "env=A"], ["env=A", "seed=2", "algo.lr=1"]])
    assert new is sweep.jobs[3]
    assert [job.overrides for job in sweep.jobs] == [*GRID, ["env=A", "seed=2", "algo.lr=1"]]
    assert [job.exit_code for job in sweep.jobs] == [None, 4, None, None]


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "done"), (1, "failed"), (4, "failed"), (5, "diverged"), (75, "interrupted"), (130, "interrupted")],
)
def test_how_a_run_ended_is_read_from_its_folder(sweep, code, status):
    run = run_folder(sweep, sweep.jobs[1], code)
    job = Sweep.open(sweep.folder).jobs[1]
    assert (job.status, job.run, job.is_done) == (status, run, code == 0)


def test_a_run_without_an_end_was_killed_and_goes_on_from_where_it_was(sweep):
    run = run_folder(sweep, sweep.jobs[0], **{"config.yaml": ""})
    again = Sweep.open(sweep.folder)
    first, second, _ = again.jobs
    assert (first.status, first.arguments(again.flags)) == ("killed", [f"resume='{run}'"])
    assert (second.status, second.arguments(again.flags)) == ("waiting", [*again.flags, *GRID[1]])


def test_a_run_that_had_not_begun_is_started_anew(sweep):
    run_folder(sweep, sweep.jobs[0])
    assert Sweep.open(sweep.folder).jobs[0].arguments([]) == GRID[0]


def test_a_run_that_goes_on_has_not_ended(sweep):
    run = run_folder(sweep, sweep.jobs[0], 0)
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert Sweep.open(sweep.folder).jobs[0].exit_code is None
    assert Sweep.open(sweep.folder).jobs[0].exit_code == 0


def test_a_process_that_was_killed_leaves_a_killed_job(sweep):
    sweep.jobs[2].exit_code = -9
    sweep.save()
    assert Sweep.open(sweep.folder).jobs[2].status == "killed"


def test_the_table_has_a_row_for_each_job_and_a_column_for_each_key_that_differs(sweep):
    run = run_folder(sweep, sweep.jobs[0], 0)
    sweep.jobs[0].look(sweep.file(sweep.jobs[0]))
    sweep.save()
    with (sweep.folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["job"], row["seed"], row["algo.lr"], row["status"]) for row in rows] == [
        ("1", "0", "1", "done"), ("2", "1", "1", "waiting"), ("3", "0", "2", "waiting")
    ]  # fmt: skip
    assert (rows[0]["best_return"], rows[0]["env_steps"], rows[0]["run"]) == ("2.5", "70", str(run))
    assert (rows[1]["exit_code"], rows[1]["run"]) == ("", "")


def test_no_sweep_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no sweep: it has no readable sweep\.json"):
        Sweep.open(tmp_path)


def test_how_far_a_job_is_while_it_runs(sweep):
    scores = "env_steps,wall_s,mean\n100,1.5,-7\n200,2.5,-3\n300,4,-5\n3"
    reports = '{"env_steps": 310}\n{"env_steps": 350, "x'
    job = sweep.jobs[0]
    job.run = run_folder(sweep, job, **{"eval.csv": scores, "metrics.jsonl": reports})
    assert job.curve.returns.tolist() == [-7, -3, -5]
    assert job.progress() == {"env_steps": 310, "wall_s": 4.0, "best_return": -3.0, "final_return": -5.0}


def test_nothing_is_known_of_files_that_are_not_there(tmp_path):
    for job in (Job(1, [], {}), Job(1, [], {}, run=tmp_path)):
        assert (set(job.progress().values()), len(job.curve)) == ({None}, 0)


@pytest.mark.parametrize(
    ("processors", "need", "memory", "most", "expected"),
    [
        ([0, 1], 1, 100, None, [{0}, {1}]),
        ([0, 1], 2, 100, None, [set()]),
        ([0, 1], 3, 100, None, [set()]),  # one after the other, on all there is
        ([2, 3, 5, 7], 2, 100, None, [{2, 3}, {5, 7}]),
        ([0, 1, 2, 3, 4], 2, 100, None, [{0, 1}, {2, 3}]),
        ([0, 1, 2, 3], 1, 29, None, [{0, 1}, {2, 3}]),  # memory for two jobs
        ([0, 1, 2, 3], 1, 5, None, [set()]),
        ([0, 1, 2, 3], 1, 100, 2, [{0, 1}, {2, 3}]),
        ([0, 1], 1, 100, 1, [set()]),
        ([0, 1], 1, 100, 8, [{0}, {1}]),
    ],
)
def test_places_for_jobs(processors, need, memory, most, expected):
    assert slots(processors, need, memory, 10, most) == expected
