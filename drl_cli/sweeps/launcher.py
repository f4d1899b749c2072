"""Launcher: run the jobs of a sweep in parallel, each on separate processors and GPUs or on free nodes of a cluster."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from drl_cli.runs.run import RUN_LOCK
from drl_cli.runtime.place.signals import SIGNAL_CODES, ending_signals, leave_terminal
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.files import is_locked
from drl_cli.utils.gpu import VISIBLE

POLL_S = 0.1
JOB_FILE = "DRL_JOB_FILE"
"""Environment variable with the path of the file into which a job writes the path of its run."""

PR_SET_PDEATHSIG = 1  # Linux's prctl option: the signal that a process gets when its parent ends


class Process(Protocol):
    """A process on this machine or on a node of a cluster, with some methods of subprocess.Popen."""

    returncode: int | None

    def has_begun(self) -> bool:
        """Return False while the process waits for free resources of the cluster."""

    def poll(self) -> int | None:
        """Return the exit code (negative if a signal ended the process), or None while the process runs."""

    def send_signal(self, number: int) -> None:
        """Send SIGINT, SIGTERM or SIGHUP. End the process at once if it still waits for resources."""

    def kill(self) -> None:
        """End the process at once."""


class Slot(NamedTuple):
    """What one job may use: these processors, and the GPUs that CUDA_VISIBLE_DEVICES names. If empty, all."""

    processors: frozenset[int] = frozenset()
    gpus: str = ""


Start = Callable[[Slot, Sequence[str], Mapping[str, str], Path], Process]
"""A function that starts Python in this slot, with these arguments, environment variables, and file for the output."""


class LocalProcess(subprocess.Popen[bytes]):
    """A process on this machine, which never waits for resources."""

    def has_begun(self) -> bool:
        return True


def start_here(slot: Slot, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
    """Start a process on this machine that may use only the processors and GPUs of the slot."""
    visible = {VISIBLE: slot.gpus} if slot.gpus else {}
    with log.open("ab") as out:
        process = LocalProcess(
            [sys.executable, "-P", *arguments],  # nothing is imported from the current folder
            env=os.environ | visible | dict(variables),
            process_group=0,  # Ctrl-C must reach the job only through the sweep, not from the terminal too
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    if slot.processors and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # the process has ended already
            os.sched_setaffinity(process.pid, slot.processors)
    return process


class Launcher:
    """Run one job at a time in each slot.

    `changed` is called with each job that starts or ends. `tick` is called several times a second and returns the jobs
    to stop. The launcher passes SIGINT, SIGTERM and SIGHUP on. At the first signal, jobs save a checkpoint and end. At
    the second, jobs end at once.
    """

    def __init__(
        self,
        sweep: Sweep,
        slots: Sequence[Slot],
        start: Start = start_here,
        changed: Callable[[Job], None] = lambda job: None,
        tick: Callable[[], Iterable[Job]] = list,
    ) -> None:
        self.sweep, self.free, self.start, self.changed, self.tick = sweep, list(slots), start, changed, tick
        self.running: dict[Job, tuple[Process, Slot]] = {}
        self.received: list[signal.Signals] = []
        self._passed_on = 0

    def run(self, jobs: Sequence[Job], more: Callable[[], Sequence[Job]] = list) -> None:
        """Run all jobs in order, then the jobs that `more` returns, until `more` returns none.

        Raise SystemExit with the exit code of the first signal, after all jobs have ended.
        """
        waiting = list(jobs)
        with self._signals():
            while True:
                while self.free and not self.received:
                    waiting += [] if waiting else more()
                    # after a killed sweep, old processes may still train the runs of some jobs: these jobs wait
                    free = (job for job in waiting if job.run is None or not is_locked(job.run / RUN_LOCK))
                    if (job := next(free, None)) is None:
                        break
                    waiting.remove(job)
                    self._start(job)
                if not self.running and (self.received or not waiting):
                    break
                time.sleep(POLL_S)
                # the signal handler does not pass signals on, because it may interrupt a call into Ray
                for number in self.received[self._passed_on :]:
                    for process, _ in self.running.values():
                        process.send_signal(number)
                    self._passed_on += 1
                self._poll()
                for job in self.tick():
                    if job in self.running:
                        self.running[job][0].send_signal(signal.SIGTERM)
        if self.received:
            sys.exit(SIGNAL_CODES[self.received[0]])

    def _start(self, job: Job) -> None:
        job.update(self.sweep.file(job))
        if job.is_done:
            self._save(job)
            return
        slot, arguments = self.free.pop(0), ["-m", "drl_cli.cli.train", *job.arguments(self.sweep.flags)]
        process = self.start(slot, arguments, {JOB_FILE: str(self.sweep.file(job))}, self.sweep.log(job))
        job.is_running, job.is_queued, job.exit_code = True, not process.has_begun(), None
        self.running[job] = process, slot
        if job.is_queued:
            self.sweep.save()
        else:
            self._save(job)

    def _poll(self) -> None:
        for job, (process, slot) in list(self.running.items()):
            is_run_known = job.run is not None
            if process.poll() is not None:
                del self.running[job]
                self.free.append(slot)
                job.is_running = job.is_queued = False
                job.update(self.sweep.file(job))
                job.exit_code = process.returncode
                self._save(job)
            elif job.is_queued and process.has_begun():
                job.is_queued = False
                self._save(job)
            elif not is_run_known:  # a search reads the run's files to decide about pruning
                job.update(self.sweep.file(job))
                if job.run is not None:
                    self.sweep.save()

    def _save(self, job: Job) -> None:
        self.sweep.save()
        self.changed(job)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def receive(number: int, frame: object) -> None:
            if number == signal.SIGHUP:
                leave_terminal()
            if number != signal.SIGHUP or not self.received:  # the shell and the kernel send one each
                self.received.append(signal.Signals(number))

        before = {number: signal.signal(number, receive) for number in ending_signals()}
        try:
            yield
        finally:
            for process, _ in self.running.values():  # after an exception, some processes still run
                process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)


def end_with_sweep() -> None:
    """In a job: ask Linux for SIGTERM when the sweep's process dies. On SIGTERM the job saves a checkpoint and ends."""
    if JOB_FILE in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def begin_job(folder: Path) -> None:
    """In a job: write the path of the run's folder into the file that JOB_FILE names."""
    if (file := os.environ.get(JOB_FILE)) is not None:
        Path(file).write_text(json.dumps({"run": str(folder)}))
