"""Launcher: the processes of a sweep's jobs, each on processors of its own, here or on the nodes of a cluster."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from drl_cli.runs.run import RUN_LOCK
from drl_cli.runtime.place.signals import SIGNAL_CODES
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.locks import is_locked

JOB_FILE = "DRL_JOB_FILE"
"""Environment variable: where a job writes which run it is, before it trains."""

POLL_S = 0.1
PR_SET_PDEATHSIG = 1  # of Linux's prctl: which signal comes when the parent ends


class Process(Protocol):
    """As subprocess.Popen has it, wherever the process runs."""

    returncode: int | None

    def has_begun(self) -> bool:
        """Whether it waits for room no longer."""

    def poll(self) -> int | None:
        """The exit code once it has ended, negative where a signal ended it."""

    def send_signal(self, number: int) -> None:
        """SIGINT or SIGTERM; what waits for room has ended with that."""

    def kill(self) -> None:
        """Its end, whatever it does."""


Start = Callable[[set[int], Sequence[str], Mapping[str, str], Path], Process]
"""Start this Python with arguments on a slot, with more variables of its environment; a file gets what it prints."""


class LocalProcess(subprocess.Popen[bytes]):
    """One of this machine."""

    def has_begun(self) -> bool:
        return True


def start_here(slot: set[int], arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
    """Start a process of this machine, which runs on the processors of its slot alone."""
    with log.open("ab") as out, _on(slot):
        return LocalProcess(
            [sys.executable, *arguments],
            env=os.environ | dict(variables),
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


class Launcher:
    """Runs jobs side by side, one in each of `slots`: sets of processors, an empty one for a job that may use all.

    `changed` are told of each job that starts or ends, `tick` are called several times a second.

    The first SIGINT or SIGTERM goes to all jobs, which save what they have; a second one ends them at once. A job has a
    process group of its own, so that a terminal's Ctrl-C comes to it once.
    """

    def __init__(self, sweep: Sweep, slots: Sequence[set[int]], start: Start = start_here) -> None:
        self.sweep, self.free, self.start = sweep, list(slots), start
        self.running: dict[Job, tuple[Process, set[int]]] = {}
        self.received: list[signal.Signals] = []
        self._passed_on = 0
        self.changed: list[Callable[[Job], None]] = []
        self.tick: list[Callable[[], None]] = []

    def run(self, jobs: Sequence[Job], more: Callable[[], Sequence[Job]] = list) -> None:
        """All of them to their ends, in order, then what `more` gives while it gives any.

        Raises SystemExit with the code of a signal that came.
        """
        waiting = list(jobs)
        with self._signals():
            while True:
                while self.free and not self.received:
                    waiting += [] if waiting else more()
                    if (job := _next(waiting)) is None:
                        break
                    waiting.remove(job)
                    self._start(job)
                if not self.running and (self.received or not waiting):
                    break
                time.sleep(POLL_S)
                self._pass_on()
                for job, (process, _) in list(self.running.items()):
                    if process.poll() is not None:
                        self._ended(job)
                    elif job.is_queued and process.has_begun():
                        job.is_queued = False
                        self._save(job)
                    elif job.run is None:
                        self._find_run(job)
                for look in self.tick:
                    look()
        if self.received:
            sys.exit(SIGNAL_CODES[self.received[0]])

    def stop(self, job: Job) -> None:
        """End a job softly, where it runs."""
        if job in self.running:
            self.running[job][0].send_signal(signal.SIGTERM)

    def _start(self, job: Job) -> None:
        """In a free slot, unless it has ended since it was last looked at."""
        job.look(self.sweep.file(job))
        if job.is_done:
            self._save(job)
            return
        slot = self.free.pop(0)
        process = self.start(
            slot,
            ["-m", "drl_cli.cli.train", *job.arguments(self.sweep.flags)],
            {JOB_FILE: str(self.sweep.file(job))},
            self.sweep.log(job),
        )
        job.is_running, job.is_queued, job.exit_code = True, not process.has_begun(), None
        self.running[job] = process, slot
        if job.is_queued:
            self.sweep.save()
        else:
            self._save(job)

    def _find_run(self, job: Job) -> None:
        """Take the folder of its run as soon as there is one: what runs is shown, compared and pruned by its files."""
        job.look(self.sweep.file(job))
        if job.run is not None:
            self.sweep.save()

    def _ended(self, job: Job) -> None:
        process, slot = self.running.pop(job)
        self.free.append(slot)
        job.is_running, job.is_queued, job.exit_code = False, False, process.returncode
        job.look(self.sweep.file(job))
        job.exit_code = process.returncode
        self._save(job)

    def _save(self, job: Job) -> None:
        self.sweep.save()
        for react in self.changed:
            react(job)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._receive) for number in SIGNAL_CODES}
        try:
            yield
        finally:
            for process, _ in self.running.values():  # only where this raised
                process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))

    def _pass_on(self) -> None:
        """Not where a signal comes: that may be within a call of Ray's."""
        for number in self.received[self._passed_on :]:
            for process, _ in self.running.values():
                process.send_signal(number)
            self._passed_on += 1


def _next(waiting: Sequence[Job]) -> Job | None:
    """The first whose run nobody trains: the processes of a sweep that was killed end by themselves."""
    return next((job for job in waiting if job.run is None or not is_locked(job.run / RUN_LOCK)), None)


def end_with_sweep() -> None:
    """In a job: a sweep that is killed takes its jobs along, which save what they have."""
    if JOB_FILE in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def begin_job(folder: Path) -> None:
    """In a job: this is its run."""
    if (file := os.environ.get(JOB_FILE)) is not None:
        Path(file).write_text(json.dumps({"run": str(folder)}))


@contextmanager
def _on(processors: set[int]) -> Iterator[None]:
    """What is started inside runs on these alone."""
    if not processors or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def slots(processors: Sequence[int], need: int, memory: int, job_bytes: int, most: int | None) -> list[set[int]]:
    """The sets of processors for jobs that need `need` of them and so many bytes of free memory each.

    More jobs than processors hold would be slower than one after the other. One job alone may use all: an empty set.
    """
    count = max(1, min(len(processors) // max(1, need), memory // max(1, job_bytes), most or len(processors)))
    if count == 1:
        return [set()]
    share = len(processors) // count
    return [set(processors[i * share : (i + 1) * share]) for i in range(count)]
