import json
import os
import re
import signal
from pathlib import Path

import pytest
from processes import SMALL
from sweep_files import ENV, rows, runs, weights

from drl_cli.errors import UsageError
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.saved_run import Run
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.files import lock

JOB = (*SMALL, "mode=single", "env=near_env:Near-v0", "debug.in_process=true", "total_env_steps=1000")
LR = "algo.lr=tag(log,interval(1e-4,3e-3))"
TPE, PBT = ("hpo=tpe",), ("hpo=pbt",)


@pytest.fixture
def here(tmp_path):
    """A folder with a user's environment."""
    (tmp_path / "near_env.py").write_text(ENV)
    return tmp_path


WRONG = [
    (("seed=0,1", "sweep.job=2"), "Did you mean sweep.jobs"),
    (("algo.lr=-1,1e-3",), "algo.lr: must be > 0, got -1   (job 1 of 2)"),
    (("replay.capacity=10,1000000",), "replay.capacity"),
    (("env=Pendulum-v1,CartPole-v1", "algo=sac"), "CartPole-v1 has Discrete(2)"),
    (("env=Pendulum-v1,nowhere:My-v0",), "there is no module 'nowhere' to import"),
    (("algo=sac,dqn",), "(job 2 of 2)"),
    *[(("resume=nope",), "resume: no sweep 'nope'"), (TPE, "hpo: nothing to search")],
    ((*TPE, "algo.lr=interval(-1,1)"), "algo.lr: must be > 0, got -1"),
    ((*TPE, "algo.lr=interval(1,0)"), "an interval goes from a number to a higher one"),
    ((*TPE, "algo.lr=tag(log,interval(0,1))"), "begins above 0"),
    ((*TPE, "algo.lr=tag(exp,interval(1,2))"), "no tag 'exp'"),
    ((*TPE, "algo.lr=tag(log,choice(1,2))"), "tag(log, ...) is for an interval"),
    ((*TPE, "algo.lr=interval(1,"), "can't be read; a search takes"),
    ((*TPE, "trainer.batch_size=interval(8,64)"), "trainer.batch_size: must be a whole number"),
    ((*TPE, "seed=range(0,3)", LR), "hpo.seeds=3"),
    ((*TPE, LR, "hpo.members=4"), "hpo.members: is of hpo=pbt, not of a search"),
    ((*TPE, LR, "hpo.sampler=gp"), "hpo.sampler: say hpo=gp"),
    (("hpo=cma", "network.hidden=choice([64],[32])"), "hpo=cma searches numbers"),
    (("hpo=tpee", LR), "no hpo option 'tpee'. Did you mean tpe?"), (PBT, "hpo: nothing to change"),
    ((*PBT, "seed=range(0,3)", LR), "seed: the population sets it"),
    ((*PBT, "total_env_steps=choice(1000,2000)", LR), "total_env_steps: the population sets it"),
    ((*PBT, "network.hidden=choice([64],[32])"), "one value only; give one value, or search it by hpo=tpe"),
    ((*PBT, "algo=choice(sac,ppo)"), "algo: can't change while a member trains"),
    ((*PBT, "env.kwargs.g=interval(1,10)"), "env.kwargs.g: can't change while a member trains"),
    ((*PBT, "worker.num=range(1,4)"), "worker.num: changes nothing that is learned"),
    ((*PBT, LR, "stop.return=-200"), "stop.return: all members train equally long"),
    ((*PBT, LR, "hpo.rounds=5000", "total_env_steps=4000"), "hpo.rounds=5000: more than total_env_steps=4000"),
    ((*PBT, LR, "hpo.trials=3"), "hpo.trials: is of a search, not of hpo=pbt"),
    ((*PBT, LR, "hpo.sampler=tpe"), "hpo.sampler: say hpo=tpe"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "text"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_a_mistake_is_answered_before_the_first_job(args, text, multirun, tmp_path, capsys):
    if any(arg in ("hpo=tpe", "hpo=cma") for arg in args):
        pytest.importorskip("optuna")
    with pytest.raises(UsageError) as raised:
        multirun("env=Pendulum-v1", *args)
    assert raised.value.exit_code == 2
    assert text in "\n".join(raised.value.problems)
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("seed=0,1",), "2 jobs; all checks passed"),
        (
            (*TPE, LR, "algo.n_step=1,3", "hpo.fresh_seeds=1"),
            "32 trials over algo.lr, algo.n_step: 32 jobs, then 2 jobs to compare the best values with the defaults on "
            "1 fresh seed; all checks passed at 4 points",
        ),
        (
            (*PBT, LR, "total_env_steps=1e4", "hpo.rounds=3"),
            "8 members, 3 rounds of 3,334 env steps over algo.lr; all checks passed at 3 points",
        ),
    ],
)  # fmt: skip
def test_a_dry_run_only_checks(args, text, multirun, tmp_path, capsys):
    if TPE[0] in args:
        pytest.importorskip("optuna")
    assert (multirun("env=Pendulum-v1", *args, "dry_run=true"), capsys.readouterr().out) == (0, f"{text}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def begun(multirun, tmp_path):
    """A sweep of two jobs that have not been started, in the current folder."""
    sweep = Sweep(tmp_path, [])
    sweep.add([["env=Pendulum-v1", "seed=0"], ["env=Pendulum-v1", "seed=1"]])
    sweep.make_folder("outputs")
    return sweep


def test_a_sweep_that_is_being_run_is_not_run_twice(begun, multirun):
    with lock(begun.folder / RUN_LOCK), pytest.raises(UsageError, match="is being run right now"):
        multirun("resume=latest")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("study.json", '{"trials": []}'), ("sweep.json", '{"jobs": [{"overrides')],
        *[("population.json", '{"rounds": [1]}'), ("population.json", "")],
    ],
)
def test_a_damaged_record_is_exit_8(begun, multirun, name, text):
    if name == "study.json":
        pytest.importorskip("optuna")
    (begun.folder / name).write_text(text)
    with pytest.raises(UsageError, match=f"{name} is missing or damaged") as raised:
        multirun("resume=latest")
    assert raised.value.exit_code == 8


def test_jobs_that_ended_after_the_sweep_was_killed_are_done(begun, multirun, tmp_path):
    for job in begun.jobs:
        job.is_running = True
        run = tmp_path / "outputs" / str(job.number)
        run.mkdir(parents=True)
        (run / "summary.json").write_text('{"exit_code": 0, "env_steps": 1000}')
        begun.file(job).write_text(json.dumps({"run": str(run)}))
    begun.save()
    assert ([row["status"] for row in rows(tmp_path)], multirun("resume=latest")) == (["running"] * 2, 0)
    assert [row["status"] for row in rows(tmp_path)] == ["done"] * 2


@pytest.mark.slow
def test_the_unfinished_jobs_can_be_checked_without_a_run(begun, multirun, capsys):
    begun.jobs[0].exit_code = 0
    begun.save()
    assert multirun("resume=latest", "dry_run=true") == 0
    assert capsys.readouterr().out == "1 jobs; all checks passed\n"


@pytest.mark.slow
def test_new_jobs_of_a_resumed_sweep_need_the_words_that_all_jobs_share(begun, multirun, capsys):
    with pytest.raises(UsageError, match="all jobs of this sweep have env=Pendulum-v1; new jobs need these words, too"):
        multirun("resume=latest", "seed=2,3")
    assert multirun("resume=latest", "env=Pendulum-v1", "seed=2,3", "dry_run=true") == 0
    assert capsys.readouterr().out == "4 jobs; all checks passed\n"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_only_failed_and_killed_jobs_are_run_again(start, drl, here):
    sweep = start("-m", *JOB, "seed=0,1", "env.kwargs.map=null,late.txt", cwd=here)

    def third():
        found = [Path(json.loads(file.read_text())["run"]) for file in here.glob("outputs/multirun/*/3.json")]
        return next((run for run in found if (run / "checkpoints" / "last").exists()), None)

    sweep.until(third)
    os.kill(Run(third()).record["pid"], signal.SIGKILL)
    assert sweep.wait() == 10, sweep.err
    assert [row["status"] for row in rows(here)] == ["done", "failed", "killed", "failed"]
    assert sweep.err.count("will fail") == 2
    assert "job 2 failed: seed=0 env.kwargs.map=late.txt" in sweep.err
    before = {run: (run / "summary.json").stat().st_mtime_ns for run in runs(here) if (run / "summary.json").exists()}
    (here / "late.txt").write_text("")
    again = drl("train", "-m", "resume=latest", cwd=here)
    assert again.returncode == 0, again.stderr
    assert ({row["status"] for row in rows(here)}, len(runs(here))) == ({"done"}, 4)
    assert {run: (run / "summary.json").stat().st_mtime_ns for run in before} == before
    (resumed,) = [run for run in runs(here) if "resumed" in Run(run).record]
    assert str(resumed) == rows(here)[2]["run"]
    assert Run(resumed).record["resumed"][0]["env_steps"] > 0
    nothing = drl("train", "-m", "resume=latest", cwd=here)
    assert (nothing.returncode, "4 of 4 jobs done" in nothing.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("everything", [True, False], ids=["everything", "the-sweep"])
def test_a_killed_sweep_loses_no_job_and_runs_none_twice(start, drl, here, tmp_path_factory, everything):
    args = ("-m", *JOB, "seed=0,1,2,3")
    quiet = tmp_path_factory.mktemp("quiet")
    (quiet / "near_env.py").write_text(ENV)
    assert drl("train", *args, cwd=quiet).returncode == 0
    sweep = start(*args, cwd=here)
    sweep.until(lambda: any(here.glob("outputs/*/*/*/checkpoints/last")))
    if everything:
        sweep.kill_all()
    else:
        sweep.process.kill()
        assert sweep.left(30) == []  # the jobs have saved checkpoints
    assert 1 <= len(runs(here)) < 4
    again = drl("train", "-m", "resume=latest", cwd=here)
    assert again.returncode == 0, again.stderr
    assert len(runs(here)) == 4
    assert weights(here) == weights(quiet)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "group", "code"), [(signal.SIGINT, True, 130)])
def test_a_signal_ends_all_jobs_softly_and_the_sweep_is_resumed(start, drl, here, number, group, code):
    sweep = start("-m", *JOB, "seed=0,1,2", "total_env_steps=3000", cwd=here)
    sweep.until(lambda: any(here.glob("outputs/*/*/*/checkpoints/last")))
    sweep.send(number, group)
    assert sweep.wait() == code
    assert "Traceback" not in sweep.err
    assert re.search(r"\d of 3 jobs done\n", sweep.out)
    assert re.search(r"next: drl-train -m resume=\S+multirun", sweep.err)
    states = {row["status"] for row in rows(here)}
    assert "waiting" in states
    assert states <= {"interrupted", "waiting", "done"}
    again = drl("train", "-m", "resume=latest", cwd=here)
    assert again.returncode == 0, again.stderr
    assert len(runs(here)) == 3
