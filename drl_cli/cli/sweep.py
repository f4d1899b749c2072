"""A job of a sweep: a process of its own, which gets the signals that the sweep gets."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from drl_cli.runtime.place.signals import EXIT_CODES


class _Forward:
    """Passes signals on to a job, those that came before it was there too."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.job: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        if self.job is not None:
            self.job.send_signal(number)

    def to(self, job: "subprocess.Popen[bytes]") -> None:
        """From now on."""
        self.job = job
        for number in self.received:
            job.send_signal(number)


def run_job(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run it to its end; returns its exit code.

    SIGINT and SIGTERM are for the job, which saves what it has; then the sweep ends, too: SystemExit with the code of
    the first. The job has a process group of its own, so that a terminal's Ctrl-C comes to it once.
    """
    forward = _Forward()
    before = {number: signal.signal(number, forward) for number in EXIT_CODES}
    try:
        with subprocess.Popen(command, env=env, process_group=0) as job:
            forward.to(job)
        if forward.received:
            sys.exit(EXIT_CODES[forward.received[0]])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return job.returncode
