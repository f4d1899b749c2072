import csv
import fcntl
import io
import json

import pytest

from drl_cli.settings.space import parse
from drl_cli.sweeps import multirun, results
from drl_cli.sweeps.jobs import SweepView
from drl_cli.sweeps.sweep import Job, Sweep

SUMMARY = {"exit_code": 0, "best_return": -140.23, "final_return": -150, "env_steps": 12000, "wall_s": 34.2}


def make_run(sweep, number, exit_code=None, **files):
    """Make the run folder of a job and name it in the job's file; with a summary if the run has ended."""
    run = sweep.folder.parent / f"run{number}"
    run.mkdir()
    sweep.file(sweep.jobs[number - 1]).write_text(json.dumps({"run": str(run)}))
    if exit_code is not None:
        files["summary.json"] = json.dumps(SUMMARY | {"exit_code": exit_code})
    for name, text in files.items():
        (run / name).write_text(text)
    return run


def test_a_new_sweep_is_on_disk_before_a_job_starts(sweep):
    opened = Sweep.open(sweep.folder)
    assert opened.flags == ["--config-name", "train"]
    assert [(job.number, job.overrides, job.differs, job.status, job.run) for job in opened.jobs] == [
        (number, ["env=A", f"seed={number - 1}"], {"seed": f"{number - 1}"}, "waiting", None) for number in (1, 2, 3)
    ]


def test_jobs_with_the_same_overrides_in_another_order_are_one_job(sweep):
    sweep.jobs[1].exit_code = 4
    (new,) = sweep.add([["seed=1", "env=A"], ["env=B", "seed=2"]])
    assert new is sweep.jobs[3]
    assert [job.exit_code for job in sweep.jobs] == [None, 4, None, None]
    assert [job.differs for job in sweep.jobs][2:] == [{"env": "A", "seed": "2"}, {"env": "B", "seed": "2"}]


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "done"), (1, "failed"), (4, "failed"), (5, "diverged"), (75, "interrupted"), (130, "interrupted")],
)
def test_the_end_of_a_run_is_read_from_its_folder(sweep, code, status):
    run, job = make_run(sweep, 2, code), Sweep.open(sweep.folder).jobs[1]
    assert (job.status, job.run, job.is_done) == (status, run, code == 0)


def test_a_killed_run_is_resumed_if_it_had_begun(sweep):
    run = make_run(sweep, 1, **{"config.yaml": ""})
    make_run(sweep, 2)
    sweep.jobs[2].exit_code = -9
    sweep.save()
    jobs = Sweep.open(sweep.folder).jobs
    assert [job.status for job in jobs] == ["killed"] * 3
    assert [job.arguments(["-x"]) for job in jobs[:2]] == [[f"resume={run}"], ["-x", "env=A", "seed=1"]]


def test_the_path_of_a_resumed_run_may_have_any_sign(tmp_path):
    run = tmp_path / "it's a, b"
    run.mkdir()
    (run / "config.yaml").touch()
    (word,) = Job(1, [], {}, run=run).arguments([])
    assert parse([word]) == [("resume", str(run))]


def test_a_run_that_is_being_trained_has_not_ended(sweep):
    run = make_run(sweep, 1, 0)
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert Sweep.open(sweep.folder).jobs[0].exit_code is None
    assert Sweep.open(sweep.folder).jobs[0].exit_code == 0


def test_results_before_the_end_of_a_run(sweep, tmp_path):
    scores = "env_steps,wall_s,mean\n100,1.5,-7\n200,2.5,-3\n300,4,-5\n3"
    reports, job = '{"env_steps": 310}\n{"env_steps": 350, "x', sweep.jobs[0]
    job.run = make_run(sweep, 1, **{"eval.csv": scores, "metrics.jsonl": reports})
    assert job.curve.returns.tolist() == [-7, -3, -5]
    assert job.results() == {
        **{"env_steps": 310, "opt_steps": None, "wall_s": 4.0},
        **{"best_return": -3.0, "final_return": -5.0},
    }
    for job in (Job(1, [], {}), Job(1, [], {}, run=tmp_path)):
        assert (set(job.results().values()), len(job.curve)) == ({None}, 0)


@pytest.fixture
def shown(sweep):
    """The sweep: job 1 is done, job 2 runs, job 3 waits for room."""
    make_run(sweep, 1, 0)
    sweep.jobs[0].update(sweep.file(sweep.jobs[0]))
    sweep.jobs[1].is_running = sweep.jobs[2].is_running = sweep.jobs[2].is_queued = True
    return sweep


def test_sweep_csv_has_a_row_for_each_job_and_a_column_for_each_differing_key(shown):
    shown.save()
    names = ("job", "seed", "status", "best_return", "exit_code")
    with (shown.folder / "sweep.csv").open() as file:
        rows = [[row[name] for name in names] for row in csv.DictReader(file)]
    assert rows == [["1", "0", "done", "-140.23", "0"], ["2", "1", "running", "", ""], ["3", "2", "waiting", "", ""]]


def test_a_line_for_each_change(shown):
    stream = io.StringIO()
    view = SweepView(shown, stream, 5)
    for job in shown.jobs:
        view.changed(job)
    view.tick()
    view.close()
    assert stream.getvalue().splitlines() == [
        f"[job 1 of 5] done  seed=0  best -140.2  12,000 env steps  34 s  {shown.folder.parent / 'run1'}",
        "[job 2 of 5] running  seed=1",
        "[job 3 of 5] waiting  seed=2",
    ]


def test_a_table_on_a_terminal_is_drawn_again_until_the_end(shown):
    stream = io.StringIO()
    stream.isatty = lambda: True
    view = SweepView(shown, stream)
    view.tick()
    before = stream.getvalue()
    shown.jobs[1].is_running, shown.jobs[1].exit_code = False, 4
    view.changed(shown.jobs[1])
    view.tick()
    after = stream.getvalue().removeprefix(before)
    view.close()
    assert all(text in before for text in ("1 of 3 done", "-140.2", "running", "waiting"))
    assert ("failed" in before, "failed" in after, "running" in after) == (False, True, False)


def ended(sweep):
    """Let the jobs end with these best returns. Job 3 has no evaluation."""
    for number, best in ((1, -7.0), (2, 250.5), (3, None)):
        scores = "env_steps,wall_s,mean\n" + (f"1000,1.5,{best}\n1200,2,-9\n" if best else "")
        report = '{"env_steps": 1200}\n' if best else ""
        make_run(sweep, number, **{"eval.csv": scores, "metrics.jsonl": report, "config.yaml": f"seed: {number - 1}\n"})
        (sweep.folder.parent / f"run{number}" / "checkpoints" / "best").mkdir(parents=True)
        sweep.jobs[number - 1].run, sweep.jobs[number - 1].exit_code = sweep.folder.parent / f"run{number}", 0
    return sweep


def test_the_ranking_begins_with_the_best_job_and_names_the_next_commands(sweep, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    sweep.jobs[2].overrides.append("algo.lr=1")
    sweep.update_labels()
    assert multirun.finish_sweep(ended(sweep)) == 0
    head, *rows, seeds_head, of_seeds, done, evaluate, compare = capsys.readouterr().out.splitlines()
    assert head.split() == ["rank", "best", "final", "seed", "algo.lr", "steps", "status", "job", "run"]
    assert seeds_head.split()[:5] == ["rank", "best", "mean", "±", "std"]
    assert of_seeds.split()[:2] == ["1", "121.8"]  # the mean of 250.5 and -7
    assert [row.split() for row in rows] == [
        ["1", "250.5", "-9.0", "1", "-", "1,200", "done", "2", "run2"],
        ["2", "-7.0", "-9.0", "0", "-", "1,200", "done", "1", "run1"],
        ["3", "-", "-", "2", "1", "-", "done", "3", "run3"],
    ]
    assert of_seeds.split()[-2:] == ["2", "-"]  # the jobs without algo.lr are two seeds
    assert done.startswith("3 of 3 jobs done; ")
    assert evaluate == f"next: drl-eval run={(sweep.folder.parent / 'run2').relative_to(tmp_path)} episodes=100"
    assert compare == f"      drl-compare {sweep.folder.relative_to(tmp_path)}"


def test_a_best_run_without_a_checkpoint_is_not_recommended_for_evaluation(sweep, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ended(sweep)
    (sweep.folder.parent / "run2" / "checkpoints" / "best").rmdir()
    results.print_next(sweep)
    assert capsys.readouterr().out == f"next: drl-compare {sweep.folder.relative_to(tmp_path)}\n"


def test_a_long_ranking_names_the_file_with_all_rows(capsys, monkeypatch):
    monkeypatch.setattr(results, "MOST_ROWS", 2)
    scores = (1.0, None, 3.0, float("nan"))
    results.print_values(
        "score", [(score, {"algo.lr": 0.5}, {"member": i}) for i, score in enumerate(scores)], "all.csv"
    )
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        *[["rank", "score", "algo.lr", "member"], ["1", "3.0", "0.5", "2"], ["2", "1.0", "0.5", "0"]],
        ["2", "more:", "all.csv"],
    ]
