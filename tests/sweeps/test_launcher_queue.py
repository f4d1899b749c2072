"""Launcher: jobs whose processes wait for room on a cluster, and signals that come while they do."""

import itertools
import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from drl_cli.sweeps import launcher
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.launcher import Launcher
from drl_cli.sweeps.sweep import Sweep


class Process:
    """It has begun when it was looked at so often, and ended with `code` when that often; a signal ends it at once."""

    def __init__(self, begun, ended, code=0):
        self.begun, self.ended, self.code, self.returncode, self.signals = begun, ended, code, None, []

    def has_begun(self):
        self.begun -= 1
        return self.begun < 0

    def poll(self):
        self.ended -= 1
        if self.ended < 0 and self.returncode is None:
            self.returncode = self.code
        return self.returncode

    def send_signal(self, number):
        self.signals.append(number)
        self.returncode = 130

    def kill(self):
        self.returncode = -9


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "POLL_S", 0)
    made = Sweep(tmp_path, ["--config-name", "train"])
    made.make_folder(str(tmp_path))
    made.add([["env=A", f"seed={seed}"] for seed in range(3)])
    return made


def make(sweep, processes, places=3):
    """A launcher of these processes; what it started, and how each job stood whenever that changed."""
    started, seen = [], []

    def start(slot, arguments, variables, log):
        started.append((slot, arguments, variables, log))
        return processes[len(started) - 1]

    made = Launcher(sweep, [set()] * places, start)
    made.changed.append(lambda job: seen.append((job.number, job.status)))
    return made, started, seen


def test_a_job_waits_until_its_process_has_room(sweep):
    made, started, seen = make(sweep, [Process(0, 3), Process(3, 5), Process(9, 2, -9)])
    states = []
    made.tick.append(lambda: states.append([job.status for job in sweep.jobs]))
    made.run(sweep.jobs)
    assert states[0] == ["running", "waiting", "waiting"]
    assert seen == [(1, "running"), (2, "running"), (3, "killed"), (1, "done"), (2, "done")]
    assert [job.exit_code for job in Sweep.open(sweep.folder).jobs] == [0, 0, -9]
    job = sweep.jobs[1]
    assert started[1] == (
        set(),
        ["-m", "drl_cli.cli.train", "--config-name", "train", "env=A", "seed=1"],
        {"DRL_JOB_FILE": str(sweep.file(job))},
        sweep.folder / "2.log",
    )


def test_the_run_of_a_job_is_known_while_it_runs(sweep):
    made, _, _ = make(sweep, [Process(0, 9)])
    seen = []

    def tick():
        seen.append(json.loads((sweep.folder / "sweep.json").read_text())["jobs"][0]["run"])
        if len(seen) == 2:
            sweep.file(sweep.jobs[0]).write_text('{"run": "/runs/a"}')

    made.tick.append(tick)
    made.run(sweep.jobs[:1])
    assert seen[:2] == [None, None]
    assert set(seen[2:-1]) == {"/runs/a"}
    assert len(seen) > 5


def test_a_signal_comes_to_all_also_to_those_that_wait_and_no_other_is_started(sweep):
    processes = [Process(0, 99), Process(99, 99)]
    made, started, _ = make(sweep, processes, places=2)
    ticks = []

    def tick():
        ticks.append([process.signals for process in processes])
        if len(ticks) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    made.tick.append(tick)
    with pytest.raises(SystemExit) as ended:
        made.run(sweep.jobs)
    assert ended.value.code == 130
    assert [process.signals for process in processes] == [[signal.SIGINT]] * 2
    assert [job.status for job in sweep.jobs] == ["interrupted", "interrupted", "waiting"]
    assert len(started) == 2


def test_it_looks_at_the_jobs_now_and_then_and_sleeps_in_between(sweep, monkeypatch):
    slept = []
    monkeypatch.setattr(launcher, "POLL_S", 0.1)
    monkeypatch.setattr(launcher.time, "sleep", slept.append)
    made, _, _ = make(sweep, [Process(0, 5)])
    made.run(sweep.jobs[:1])
    assert slept == [0.1] * 6


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_only_the_job_of_a_sweep_ends_with_it(monkeypatch):
    asked = []
    monkeypatch.setattr(
        launcher.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=lambda *values: asked.append(values))
    )
    monkeypatch.delenv("DRL_JOB_FILE", raising=False)
    launcher.end_with_sweep()
    assert asked == []
    monkeypatch.setenv("DRL_JOB_FILE", "1.json")
    launcher.end_with_sweep()
    assert asked == [(1, signal.SIGTERM)]


def test_a_job_that_is_stopped_gets_sigterm(sweep):
    process = Process(0, 99)
    made, _, _ = make(sweep, [process])
    made.tick.append(lambda: [made.stop(job) for job in sweep.jobs])
    made.run(sweep.jobs[:1])
    assert process.signals == [signal.SIGTERM]


def test_all_end_when_the_sweep_has_a_bug(sweep):
    process = Process(0, 99)
    made, _, _ = make(sweep, [process])
    made.tick.append(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.run(sweep.jobs[:1])
    assert process.returncode == -9


def test_what_waits_for_room_is_running_for_whoever_starts_jobs():
    job = Job(1, [], {}, is_running=True, is_queued=True)
    assert (job.status, job.is_running) == ("waiting", True)


def test_a_signal_is_passed_on_once_however_long_a_job_saves(sweep):
    class Saving(Process):
        def send_signal(self, number):
            self.signals.append(number)

    process, looks = Saving(0, 6, 130), itertools.count()
    made, _, _ = make(sweep, [process])
    made.tick.append(lambda: signal.raise_signal(signal.SIGINT) if next(looks) in (0, 3) else None)
    with pytest.raises(SystemExit):
        made.run(sweep.jobs[:1])
    assert next(looks) > 5
    assert process.signals == [signal.SIGINT, signal.SIGINT]
