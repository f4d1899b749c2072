"""A command in other processes: wait for a moment, send signals to it or to a role, and find left-over processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import psutil
import pytest
from words import newest

SMALL = (
    *("env=Pendulum-v1", "network.hidden=[16,16]", "trainer.batch_size=16", "worker.num=1", "worker.envs=4"),
    *("worker.block_rows=32", "orchestrator.min_inserts=64", "manage.eval_episodes=2", "manage.confirm_episodes=0"),
    *("manage.eval_period=400", "checkpoint.period=400", "replay.capacity=20000", "ray.object_store_mb=80"),
    "total_env_steps=1000000",
    "trainer.compile=false",  # so many updates would be compiled in single and sync
)
"""A run that soon trains, evaluates and saves, and that continues for long."""

MARK = "DRL_TEST_PROCESS"


class Run:
    """`python -m drl_cli.cli.<command>` in a new session. A mark in their environment finds all its processes."""

    def __init__(self, cwd, *args, command="train", **env):
        self.cwd, self.mark = cwd, uuid.uuid4().hex
        self.files = [cwd / f"{name}-{self.mark}" for name in ("out", "err")]
        line = [sys.executable, "-m", f"drl_cli.cli.{command}", *newest(args)]
        marked = os.environ | env | {MARK: self.mark}
        with self.files[0].open("w") as out, self.files[1].open("w") as err:
            self.process = subprocess.Popen(line, cwd=cwd, env=marked, stdout=out, stderr=err, start_new_session=True)

    @property
    def out(self):
        return self.files[0].read_text()

    @property
    def err(self):
        return self.files[1].read_text()

    @property
    def folder(self):
        (folder,) = self.cwd.glob("outputs/*/*/*-s*")
        return folder

    @property
    def status(self):
        return json.loads((self.folder / "run.json").read_text())["status"]

    def until(self, condition, timeout_s=240.0):
        """Wait until `condition()` is true. Fail if the run ends before."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.out}\n{self.err}"
            assert time.monotonic() < end, f"not within {timeout_s} s:\n{self.out}\n{self.err}"
            time.sleep(0.01)

    def rest(self, seconds):
        """Wait for some seconds, or until the run ends."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def until_said(self, text, timeout_s=240.0):
        """Wait until the run has printed a text."""
        self.until(lambda: text in self.out, timeout_s)

    @property
    def saved(self):
        """Environment steps of the last checkpoint, -1 without one."""
        last = next(self.cwd.glob("outputs/*/*/*/checkpoints/last"), None)
        return int(last.readlink().name[5:14]) if last and last.exists() else -1

    def pid(self, role):
        (log,) = self.cwd.glob(f"outputs/*/*/*/workers/{role}.log")
        return int(re.findall(r"is process (\d+)", log.read_text())[-1])

    def send(self, number, group=False):
        (os.killpg if group else os.kill)(self.process.pid, number)

    def kill(self, role):
        """Kill the process of a role, or a process of Ray by its name."""
        named = [process for process in self.processes() if process.name() == role]
        os.kill(named[0].pid if named else self.pid(role), signal.SIGKILL)

    def processes(self):
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left(self, timeout_s=5.0):
        """Return the processes that still live after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        return [" ".join(process.cmdline())[:80] for process in found if process.is_running()]

    def wait(self, timeout_s=120.0):
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not over within {timeout_s} s:\n{self.out}\n{self.err}")

    def kill_all(self):
        """Every process at once, as a power cut would."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.process.wait(10)
