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
from itertools import chain, repeat
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

from drl_cli.config.config import Config
from drl_cli.errors import LOST, MISSING, ClusterUnfit, UsageError
from drl_cli.metrics.display import announce, erase
from drl_cli.run_folder import RUN_LOCK
from drl_cli.runtime.place.signals import SIGNAL_CODES, ending_signals, leave_terminal
from drl_cli.settings.fill import check_gpus, gain
from drl_cli.sweeps.sweep import Job, Sweep
from drl_cli.utils import gpu
from drl_cli.utils.files import is_locked
from drl_cli.utils.gpu import VISIBLE
from drl_cli.utils.machine import Node, cores, free_memory

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


PROCESS_BYTES = 300 * 2**20
"""Bytes of memory of each process of a job, without replay."""
JOBS_PER_GPU = 4
"""Maximum number of jobs that share a GPU. Each job takes about 0.5 GB of its memory, and they run in turns."""
PASSED_ON = ("DRL_", "WANDB_")
"""Prefixes of the environment variables that are copied to a job on a node. The node sets all other variables."""


def check_cluster(configs: Sequence[Config], folder: Path) -> None:
    """Join the jobs' cluster, if any. Raise UsageError if a node can't run the jobs or read the sweep's folder."""
    addresses = {config.ray.address for config in configs}
    if len(addresses) > 1:
        raise UsageError("ray.address: all jobs of a sweep run on one cluster: give one value")
    (address,) = addresses
    if address is None:
        return
    from drl_cli.preflight.pace import pace_problems
    from drl_cli.runtime.place.cluster_nodes import node_gpus, unshared
    from drl_cli.runtime.place.launch import Cluster
    from drl_cli.settings.fill import fill

    announce(sys.stdout, f"asking the nodes of the cluster at {address}")
    try:
        modules = sorted({name for config in configs for name in config.outside_modules})
        cluster = Cluster(address, configs[0].env, modules, folder=os.getcwd())
    except ClusterUnfit as error:
        raise UsageError(error.problems, error.exit_code) from error
    if problems := [problem for config in configs for problem in pace_problems(fill(config, cluster.nodes))]:
        raise UsageError(list(dict.fromkeys(problems)))
    if named := [config for config in configs if config.device == "cuda"]:
        found = node_gpus(cluster.nodes)
        for config in named:
            check_gpus(config, found, "in the cluster")
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    lacking = [f"{node} has no drl-cli: install it there" for node in cluster.lacking]
    if problems := lacking or unshared(cluster.nodes, existing, Path.cwd()):
        raise UsageError(problems, MISSING)
    erase(sys.stdout)


def job_slots(configs: Sequence[Config]) -> tuple[list[Slot], int, Start]:
    """Return a slot for each job that can run at once, `sweep.jobs` (0 for auto), and the function that starts a job.

    Raise UsageError if the cluster has no node.
    """
    if not configs:
        return [Slot()], 0, start_here
    config = configs[0]
    asked = 0 if config.sweep.jobs == "auto" else config.sweep.jobs
    if config.ray.address:
        from drl_cli.runtime.place.cluster_nodes import live_nodes

        if not (nodes := live_nodes()):
            raise UsageError(f"ray.address: the cluster at {config.ray.address} has no node with a CPU any more", LOST)
        share = node_share(nodes, configs)
        return [Slot()] * min(share.num, asked or share.num), asked, share.start
    return local_slots(configs, cores(), free_memory(), asked), asked, start_here


def local_slots(configs: Sequence[Config], processors: Sequence[int], free: int, asked: int = 0) -> list[Slot]:
    """Return a slot for each job that can run at once with these processors and `free` bytes of memory."""
    from drl_cli.settings.fill import fill

    filled = [fill(config) for config in configs]
    need, memory = max(map(busy_processors, filled)), max(map(memory_bytes, filled))
    visible, most = gpu_shares(filled), free // max(1, memory)
    shares = share_processors(processors, need, min(most, len(visible)) if visible else most, asked)
    return [*map(Slot, shares, chain(visible, repeat("")))]


def gpu_shares(configs: Sequence[Config]) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES for each job that can run at once on the GPUs here; [] if no job takes a GPU.

    A job that names its GPU by number sees all GPUs.
    """
    if not any(gpu.expects_gpu(config.device) and takes_gpu(config) for config in configs):
        return []
    ids, num = [one.id for one in gpu.gpus() if not one.problem], max(config.trainer.num for config in configs)
    groups = [",".join(ids[first : first + num]) for first in range(0, len(ids) - num + 1, num)]
    return (groups if not any(":" in config.device for config in configs) else [""] * len(groups)) * JOBS_PER_GPU


def share_processors(processors: Sequence[int], need: int, most: int, asked: int = 0) -> list[frozenset[int]]:
    """Share the processors among jobs that need `need` each. `most`, and `asked` if not 0, limit the number of jobs."""
    count = max(1, min(len(processors) // max(1, need), most, asked or len(processors)))
    if count == 1:
        return [frozenset()]
    share = len(processors) // count
    return [frozenset(processors[i * share : (i + 1) * share]) for i in range(count)]


class NodeShare(NamedTuple):
    """The number of jobs that fit on the nodes at once, at least 1, and what each of them reserves on its node."""

    num: int
    cpus: int
    memory: int  # bytes
    gpus: float

    def start(self, slot: Slot, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        """Start a job on a free node."""
        from drl_cli.runtime.place.cluster_nodes import NodeProcess

        passed_on = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        return NodeProcess(arguments, passed_on | dict(variables), log, self.cpus, self.memory, self.gpus)


def node_share(nodes: Sequence[Node], configs: Sequence[Config]) -> NodeShare:
    """Return how jobs with these configs share the nodes."""
    from drl_cli.settings.fill import fill

    configs = [fill(config, nodes) for config in configs]
    # a job with mode=single runs on one node; any other job uses an equal share of every node
    parts = 1 if any(config.is_one_process for config in configs) else len(nodes)
    cpus, memory = (ceil(max(map(need, configs)) / parts) for need in (busy_processors, memory_bytes))
    count = sum(min(int(node.cpus) // cpus, node.memory // memory) for node in nodes) // parts
    # each trainer that Ray starts takes a GPU; other jobs share the GPUs
    gpus = [
        config.trainer.num if config.trains_apart else 1 / JOBS_PER_GPU
        for config in configs
        if any(node.gpus for node in nodes) and takes_gpu(config)
    ]
    if gpus:
        count = min(count, int(sum(node.gpus for node in nodes) / max(gpus)))
    own = min(gpus, default=0)
    reserved = own if own < 1 else 0  # Ray reserves the whole GPUs of the trainers
    largest = max(nodes, key=lambda node: (node.cpus, node.memory))
    # a larger job would wait for ever
    return NodeShare(max(1, count), min(cpus, int(largest.cpus)), min(memory, largest.memory), reserved)


def busy_processors(config: Config) -> int:
    """Return the number of processors that a job keeps busy."""
    threads = config.trainer.threads if isinstance(config.trainer.threads, int) else 1
    return threads if config.is_one_process else config.num_workers + config.trainer.num * threads


def memory_bytes(config: Config) -> int:
    """Return the bytes of memory that a job needs for its processes, Ray's processes and replay."""
    from drl_cli.preflight.environment import environment_spec
    from drl_cli.settings.fill import replay_bytes, with_capacity

    processes, spec = 5 if config.is_one_process else 6 + config.num_workers, environment_spec(config)
    return processes * PROCESS_BYTES + replay_bytes(with_capacity(config, spec), spec)


def takes_gpu(config: Config) -> bool:
    """Return whether the run takes a GPU where there is one."""
    if config.device != "auto":
        return config.device != "cpu"
    from drl_cli.preflight.environment import environment_spec  # slow to import

    return gain(config, environment_spec(config)) is not None
