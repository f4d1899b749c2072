import itertools
import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from drl_cli.sweeps import launcher
from drl_cli.sweeps.launcher import Launcher, Slot, start_here
from drl_cli.sweeps.sweep import Sweep


class Process:
    """A process that waits for room in its first `begun` looks, and ends with `code` after `ended` looks."""

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


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(launcher, "POLL_S", 0)


def launch(sweep, processes, tick=list, changed=lambda job: None):
    """Run one job for each process; return the arguments of each start."""
    started = []

    def start(*args):
        started.append(args)
        return processes[len(started) - 1]

    Launcher(sweep, [Slot()] * len(processes), start, changed, lambda: tick() or ()).run(sweep.jobs[: len(processes)])
    return started


def test_a_job_waits_until_its_process_has_room(sweep):
    seen, states = [], []
    started = launch(
        sweep,
        [Process(0, 3), Process(3, 5), Process(9, 2, -9)],
        lambda: states.append([job.status for job in sweep.jobs]),
        lambda job: seen.append((job.number, job.status)),
    )
    assert states[0] == ["running", "waiting", "waiting"]
    assert seen == [(1, "running"), (2, "running"), (3, "killed"), (1, "done"), (2, "done")]
    assert [job.exit_code for job in Sweep.open(sweep.folder).jobs] == [0, 0, -9]
    arguments = ["-m", "drl_cli.cli.train", "--config-name", "train", "env=A", "seed=1"]
    assert started[1] == (Slot(), arguments, {"DRL_JOB_FILE": f"{sweep.folder}/2.json"}, sweep.folder / "2.log")


def test_the_run_of_a_job_is_known_while_it_runs(sweep):
    seen = []

    def tick():
        seen.append(json.loads((sweep.folder / "sweep.json").read_text())["jobs"][0]["run"])
        if len(seen) == 2:
            sweep.file(sweep.jobs[0]).write_text('{"run": "/runs/a"}')

    launch(sweep, [Process(0, 9)], tick)
    assert (seen[:2], set(seen[2:-1])) == ([None, None], {"/runs/a"})
    assert len(seen) > 5


def test_a_job_begins_in_the_slot_of_one_that_has_ended(sweep):
    slots, seen = [Slot(gpus="0"), Slot(gpus="1")], []
    processes = iter([Process(0, 99), Process(0, 0), Process(0, 0)])

    def start(slot, *args):
        seen.append(slot.gpus)
        return next(processes)

    Launcher(sweep, slots, start).run(sweep.jobs)
    assert seen == ["0", "1", "1"]


def test_a_signal_reaches_all_jobs_and_no_other_job_starts(sweep):
    processes, looks = [Process(0, 99), Process(99, 99)], itertools.count()
    running = Launcher(
        sweep,
        [Slot()] * 2,
        lambda *args: processes[int(args[1][-1][-1])],
        tick=lambda: os.kill(os.getpid(), signal.SIGINT) or () if next(looks) == 2 else (),
    )
    with pytest.raises(SystemExit) as ended:
        running.run(sweep.jobs)
    assert (ended.value.code, [process.signals for process in processes]) == (130, [[signal.SIGINT]] * 2)
    assert [job.status for job in sweep.jobs] == ["interrupted", "interrupted", "waiting"]


def test_a_signal_is_passed_on_once_while_a_job_saves(sweep):
    class Saving(Process):
        def send_signal(self, number):
            self.signals.append(number)

    process, looks = Saving(0, 6, 130), itertools.count()
    with pytest.raises(SystemExit):
        launch(sweep, [process], lambda: signal.raise_signal(signal.SIGINT) if next(looks) in (0, 3) else None)
    assert next(looks) > 5
    assert process.signals == [signal.SIGINT, signal.SIGINT]


def test_a_stopped_job_gets_sigterm(sweep):
    process = Process(0, 99)
    launch(sweep, [process], lambda: sweep.jobs)
    assert process.signals == [signal.SIGTERM]


def test_all_processes_end_after_an_exception(sweep):
    process = Process(0, 99)
    with pytest.raises(ZeroDivisionError):
        launch(sweep, [process], lambda: 1 / 0)
    assert process.returncode == -9


@pytest.mark.skipif(sys.platform != "linux", reason="prctl and sched_setaffinity are Linux's")
def test_a_process_on_this_machine(tmp_path, monkeypatch):
    """It has only its processors, and only a job asks to end with its sweep."""
    processors = {min(os.sched_getaffinity(0))}
    shown = "os.sched_getaffinity(0), os.environ['A'], os.environ['CUDA_VISIBLE_DEVICES']"
    code = f"import os, time; time.sleep(0.2); print({shown})"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    for gpus, visible in (("5", "5"), ("", "2,5")):
        process = start_here(Slot(frozenset(processors), gpus), ["-c", code], {"A": "b"}, tmp_path / f"log{gpus}")
        assert process.has_begun()
        assert (process.wait(30), (tmp_path / f"log{gpus}").read_text()) == (0, f"{processors} b {visible}\n")
    asked = []
    library = SimpleNamespace(prctl=lambda *values: asked.append(values))
    monkeypatch.setattr(launcher.ctypes, "CDLL", lambda name: library)
    monkeypatch.delenv("DRL_JOB_FILE", raising=False)
    launcher.end_with_sweep()
    assert asked == []
    monkeypatch.setenv("DRL_JOB_FILE", "1.json")
    launcher.end_with_sweep()
    assert asked == [(1, signal.SIGTERM)]
