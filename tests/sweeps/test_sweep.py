"""drl-train -m: what is wrong is said before the first job; a sweep that failed, was killed or interrupted goes on."""

import csv
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from processes import SMALL

from drl_cli.errors import UsageError
from drl_cli.runs.run import RUN_LOCK
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose
from drl_cli.sweeps import launcher
from drl_cli.sweeps import places as cli_places
from drl_cli.sweeps.multirun import run_sweep
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.locks import lock

ENV = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box
from pathlib import Path


class Mapped(gymnasium.Env):
    """It reads a file when it is made."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, map=None):
        if map is not None:
            Path(map).read_text()
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.count += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action[0]), False, self.count >= 20, {}


gymnasium.register("Mapped-v0", Mapped)
'''
JOB = (*SMALL, "mode=single", "env=mapped:Mapped-v0", "debug.in_process=true", "total_env_steps=1500")


@pytest.fixture
def here(tmp_path):
    """A folder with a user's environment."""
    (tmp_path / "mapped.py").write_text(ENV)
    return tmp_path


def rows(cwd):
    """sweep.csv of the only sweep."""
    (file,) = cwd.glob("outputs/multirun/*/sweep.csv")
    with file.open() as text:
        return list(csv.DictReader(text))


def runs(cwd):
    return sorted(path.parent for path in cwd.glob("outputs/*/*/*/run.json"))


def weights(cwd):
    """The bytes of each run's last model, by its seed."""
    return {
        json.loads((run / "run.json").read_text())["seed"]: (run / "checkpoints/last/model.safetensors").read_bytes()
        for run in runs(cwd)
    }


GRIDS = [
    (["seed=0,1", "algo.lrr=1,2"], "algo.lrr: sac has no option 'lrr'. Did you mean algo.lr?"),
    (["seed=0,1", "lr=1,2"], "lr: no such option at the top level. Did you mean algo.lr?"),
    (["seed=0,1", "sweep.job=2"], "Did you mean sweep.jobs"),
    (["seed=0,1", "worker.nun=1,2"], "Did you mean worker.num"),
    (["algo.lr=-1,1e-3"], "algo.lr: must be > 0, got -1   (job 1 of 2)"),
    (["algo.lr=1e-3,2e-3,-2e-3"], "got -0.002   (job 3 of 3)"),
    (["algo.lr=1e-3,high"], "algo.lr: "),
    (["seed=-1,0"], "seed: must be >= 0"),
    (["seed=0.5,1"], "seed: "),
    (["seed=zero,one"], "seed: "),
    (["total_env_steps=0,1000"], "total_env_steps: must be >= 1"),
    (["total_env_steps=1000,many"], "total_env_steps: "),
    (["trainer.batch_size=64,x"], "trainer.batch_size: "),
    (["trainer.batch_size=64,0"], "trainer.batch_size: must be >= 1"),
    (["network.hidden=[64],x"], "network.hidden: must be a list"),
    (["network.hidden=[64],[a]"], "network.hidden[0]"),
    (["algo.gamma=0.9,1.1"], "algo.gamma: "),
    (["orchestrator.sample_insert_ratio=0,1"], "orchestrator.sample_insert_ratio: must be > 0"),
    (["replay.capacity=10,1000000"], "replay.capacity"),
    (["worker.envs=1,0"], "worker.envs: must be >= 1"),
    (["device=cpu,tpu"], "device: 'tpu' is not one of auto, cpu, cuda"),
    (["trainer.on_nonfinite=stop,go"], "trainer.on_nonfinite: 'go' is not one of stop, skip"),
    (["checkpoint.replay=on,maybe"], "checkpoint.replay: "),
    (["env=Pendulum-v1,CartPole-v1"], "CartPole-v1 has Discrete(2)"),
    (["env=Pendulum-v1,Pendulumm-v1"], "Did you mean Pendulum-v1"),
    (["env=Pendulum-v1,nowhere:My-v0"], "there is no module 'nowhere' to import"),
    (["algo=sac,sca"], "unknown algorithm 'sca'. Did you mean 'sac'?"),
    (["algo=sac,dqn"], "(job 2 of 2)"),
    (["mode=single,sinc"], "no mode option 'sinc'. Did you mean"),
    (["network=mlp,mpl"], "no network option 'mpl'. Did you mean"),
    (["optimizer=adam,madam"], "no optimizer option 'madam'"),
    (["replay=uniform,prioritised"], "no replay option 'prioritised'"),
    (["tuned=none,all"], "no set of tuned values 'all'"),
    (["seed=0,"], "seed=0,: can't be read"),
    (["seed=,0"], "can't be read"),
    (["seed=choice("], "seed=choice(: can't be read"),
    (["seed=choice()"], "seed=choice(): can't be read"),
    (["seed=range(2,2)"], "no value"),
    (["mode=glob(x*)"], "no value"),
    (["mode=choice(single,sinc)"], "no mode option 'sinc'. Did you mean"),
    (["algo.lr=choice(1e-3,-1)"], "algo.lr: must be > 0, got -1   (job 2 of 2)"),
    (["algo.lr=glob(*)"], "glob is for groups"),
    (["algo.lr=interval(1,2)"], "an interval is for a search"),
    (["seed=0,1", "algo.lr"], "algo.lr"),
    (["seed=3"], "leave -m out"),
    ([], "leave -m out"),
    (["seed=0,1", "sweep.jobs=0"], "sweep.jobs: "),
    (["seed=0,1", "sweep.jobs=all"], "sweep.jobs: "),
    (["resume=nope"], "resume: no sweep 'nope'"),
]


@pytest.mark.parametrize(("args", "says"), GRIDS, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_wrong_grid_is_answered_before_the_first_job(args, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)  # no job is started

    def sweep():
        command = read_command(["-m", "env=Pendulum-v1", *args])
        check_command(command)
        run_sweep(command)

    with pytest.raises(UsageError) as raised:
        sweep()
    assert raised.value.exit_code == 2
    assert says in "\n".join(raised.value.problems)
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_the_command_says_so_in_one_line(drl, tmp_path):
    done = drl("train", "-m", "env=Pendulum-v1", "algo.lr=-1,1e-3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: algo.lr: must be > 0, got -1   (job 1 of 2)\n"
    assert list(tmp_path.iterdir()) == []


def test_all_checks_without_a_run(drl, tmp_path):
    done = drl("train", "-m", "env=Pendulum-v1", "seed=0,1", "dry_run=true", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 jobs; all checks passed\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_failed_or_was_killed_is_run_again_and_nothing_else(start, drl, here):
    sweep = start("-m", *JOB, "seed=0,1,2", "env.kwargs.map=null,late.txt", cwd=here)

    def third():
        """The run of job 3, once it has a checkpoint."""
        found = [Path(json.loads(file.read_text())["run"]) for file in here.glob("outputs/multirun/*/3.json")]
        return next((run for run in found if (run / "checkpoints" / "last").exists()), None)

    sweep.until(third)
    os.kill(json.loads((third() / "run.json").read_text())["pid"], signal.SIGKILL)
    assert sweep.wait() == 10, sweep.err
    assert [row["status"] for row in rows(here)] == ["done", "failed", "killed", "failed", "done", "failed"]
    assert sweep.err.count("will fail") == 3
    assert "job 2 failed: seed=0 env.kwargs.map=late.txt" in sweep.err
    before = {run: (run / "summary.json").stat().st_mtime_ns for run in runs(here) if (run / "summary.json").exists()}
    (here / "late.txt").write_text("")
    again = drl("train", "-m", "resume=latest", cwd=here)
    assert again.returncode == 0, again.stderr
    assert {row["status"] for row in rows(here)} == {"done"}
    assert len(runs(here)) == 6
    assert {run: (run / "summary.json").stat().st_mtime_ns for run in before} == before
    resumed = [run for run in runs(here) if "resumed" in json.loads((run / "run.json").read_text())]
    assert [str(run) for run in resumed] == [rows(here)[2]["run"]]
    assert json.loads((resumed[0] / "run.json").read_text())["resumed"][0]["env_steps"] > 0
    nothing = drl("train", "-m", "resume=latest", cwd=here)
    assert (nothing.returncode, "6 of 6 jobs done" in nothing.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("everything", [True, False], ids=["everything", "the-sweep"])
def test_a_sweep_that_was_killed_loses_no_job_and_runs_none_twice(start, drl, here, tmp_path_factory, everything):
    args = ("-m", *JOB, "seed=0,1,2,3")
    quiet = tmp_path_factory.mktemp("quiet")
    (quiet / "mapped.py").write_text(ENV)
    assert drl("train", *args, cwd=quiet).returncode == 0
    sweep = start(*args, cwd=here)
    sweep.until(lambda: any(here.glob("outputs/*/*/*/checkpoints/last")))
    if everything:
        sweep.kill_all()
    else:
        sweep.process.kill()
        assert sweep.left(30) == []  # its jobs have saved what they had
    assert 1 <= len(runs(here)) < 4
    again = drl("train", "-m", "resume=latest", cwd=here)
    assert again.returncode == 0, again.stderr
    assert len(runs(here)) == 4
    assert weights(here) == weights(quiet)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 75)],
)
def test_a_signal_ends_all_jobs_in_good_order_and_the_sweep_goes_on_from_there(start, drl, here, number, group, code):
    sweep = start("-m", *JOB, "seed=0,1,2", "total_env_steps=3000", cwd=here)
    sweep.until(lambda: any(here.glob("outputs/*/*/*/checkpoints/last")))
    sweep.send(number, group)
    assert sweep.wait() == code
    assert "Traceback" not in sweep.err
    states = [row["status"] for row in rows(here)]
    assert set(states) <= {"interrupted", "waiting", "done"}
    assert "waiting" in states
    again = drl("train", "-m", "resume=latest", cwd=here)
    assert again.returncode == 0, again.stderr
    assert len(runs(here)) == 3


@pytest.mark.slow
@pytest.mark.exhaustive
def test_jobs_have_processors_of_their_own(start, here):
    sweep = start("-m", *JOB, "seed=0,1", "total_env_steps=100000", cwd=here)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")

    def both():
        return len(runs(here)) == 2

    sweep.until(both)
    pids = [json.loads((run / "run.json").read_text())["pid"] for run in runs(here)]
    first, second = (os.sched_getaffinity(pid) for pid in pids)
    assert not first & second
    for _ in range(2):
        sweep.send(signal.SIGINT)
        time.sleep(0.2)
    assert sweep.wait() in (130, -signal.SIGINT)  # the second may come when it has all but ended


@pytest.mark.parametrize(
    ("args", "places", "asked"),
    [
        (["mode=single"], [{0}, {1}, {2}, {3}], 0),
        (["mode=single", "sweep.jobs=2"], [{0, 1}, {2, 3}], 2),
        (["mode=single", "sweep.jobs=9"], [{0}, {1}, {2}, {3}], 9),
        (["mode=single", "trainer.threads=2"], [{0, 1}, {2, 3}], 0),
        (["mode=async", "worker.num=1"], [{0, 1}, {2, 3}], 0),
        (["mode=async", "worker.num=1", "trainer.num=2"], [set()], 0),
        (["mode=sync", "worker.num=3"], [set()], 0),
    ],
)
def test_how_many_trainings_this_machine_holds(args, places, asked, monkeypatch):
    monkeypatch.setattr(cli_places, "cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**40))
    config = compose(["env=Pendulum-v1", *args])
    assert cli_places.room([config, config]) == (places, asked, launcher.start_here)


def test_no_more_jobs_than_memory_holds(monkeypatch):
    monkeypatch.setattr(cli_places, "cores", lambda: [0, 1, 2, 3])
    config = compose(["env=Pendulum-v1", "mode=single"])
    need = cli_places.memory_needed(config)
    assert 2**30 < need < 3 * 2**30
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * need))
    assert len(cli_places.room([config])[0]) == 3


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A sweep of two jobs, none of which has been started, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)  # no job is started
    sweep = Sweep(tmp_path, [])
    sweep.add([["env=Pendulum-v1", "seed=0"], ["env=Pendulum-v1", "seed=1"]])
    sweep.make_folder("outputs")
    return sweep


def test_a_sweep_that_is_being_run_is_not_run_twice(begun):
    with lock(begun.folder / RUN_LOCK), pytest.raises(UsageError, match="is being run right now"):
        run_sweep(read_command(["-m", "resume=latest"]))


def test_a_damaged_sweep_is_said_to_be(begun):
    (begun.folder / "sweep.json").write_text('{"jobs": [{"overrides')
    with pytest.raises(UsageError, match=r"can't be read: .* no readable sweep\.json") as raised:
        run_sweep(read_command(["-m", "resume=latest"]))
    assert raised.value.exit_code == 8


def test_jobs_that_ended_after_a_sweep_was_killed_are_said_to_be_done(begun, tmp_path):
    for job in begun.jobs:
        job.is_running = True
        run = tmp_path / str(job.number)
        run.mkdir()
        (run / "summary.json").write_text('{"exit_code": 0, "env_steps": 1000}')
        begun.file(job).write_text(json.dumps({"run": str(run)}))
    begun.save()
    assert [row["status"] for row in rows(tmp_path)] == ["running"] * 2
    assert run_sweep(read_command(["-m", "resume=latest"])) == 0
    assert [row["status"] for row in rows(tmp_path)] == ["done"] * 2


def test_what_is_left_can_be_checked_without_a_run(begun, capsys):
    begun.jobs[0].exit_code = 0
    begun.save()
    assert run_sweep(read_command(["-m", "resume=latest", "dry_run=true"])) == 0
    assert capsys.readouterr().out == "1 jobs; all checks passed\n"
