"""Nodes of a joined cluster: list them, call a function on each, and run processes where Ray has room."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIG_SETMASK, SIG_UNBLOCK, SIGKILL, Signals, pthread_sigmask
from typing import Any

from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, get, ray
from drl_cli.runtime.place.ray_runtime import on_node
from drl_cli.runtime.place.signals import SIGNAL_CODES
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.machine import Node

ASK_S = 60.0  # maximum time [s] for the answer of a node
NOT_INHERITED = ("RAY_JOB_ID", "RAY_RAYLET_PID")  # variables of Ray's process that a new process must not have


def live_nodes(only_here: bool = False) -> list[Node]:
    """Return the live nodes that have a CPU or, with `only_here`, only the node of this process."""
    here = ray.get_runtime_context().get_node_id()
    return [
        Node(
            entry["NodeID"],
            entry["NodeManagerAddress"],
            held.get("CPU", 0.0),
            int(held.get("memory", 0)),
            is_here=entry["NodeID"] == here,
            gpus=int(held.get("GPU", 0)),
        )
        for entry in sorted(ray.nodes(), key=lambda entry: str(entry["NodeID"]))
        for held in [entry["Resources"]]
        if entry["Alive"] and (entry["NodeID"] == here if only_here else held.get("CPU"))
    ]


def on_each(nodes: Sequence[Node], look: Callable[..., object], *args: object) -> dict[Node, Any]:
    """Return `look(*args)` for each node, or Ray's error, or None if the call took longer than ASK_S."""
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {task.options(scheduling_strategy=on_node(node.id)).remote(*args): node for node in nodes}
    answers: dict[Node, Any] = dict.fromkeys(nodes)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S)
    for ref in done:
        try:
            answers[asked[ref]] = ray.get(ref)
        except ray.exceptions.RayError as error:
            answers[asked[ref]] = error
    return answers


def node_gpus(nodes: Sequence[Node]) -> list[Gpu]:
    """Return the GPUs of the nodes. Each node tries its own."""

    def look() -> tuple[Gpu, ...]:  # local, so that Ray pickles its code
        from drl_cli.utils.gpu import gpus

        return gpus()

    holding = [node for node in nodes if node.gpus]
    return [
        found
        for node, answer in (on_each(holding, look) if holding else {}).items()
        for found in (answer[: node.gpus] if isinstance(answer, tuple) else [Gpu("", str(node), "no answer")])
    ]


def unshared(nodes: Sequence[Node], folder: Path, work: Path) -> list[str]:
    """Return a line for each node on which a file written to `folder` is missing or `work` is not a folder."""
    secret = uuid.uuid4().hex
    probe = folder / f".{secret}"

    def look() -> tuple[bool, bool]:  # local, so that Ray pickles its code
        return probe.is_file() and probe.read_text() == secret, work.is_dir()

    probe.write_text(secret)
    try:
        answers = on_each(nodes, look)
    finally:
        probe.unlink()
    problems = []
    for node, answer in answers.items():
        if not isinstance(answer, tuple):
            problems.append(f"{node} does not say whether it sees {folder}")
            continue
        unseen = [path for path, is_seen in zip((folder, work), answer, strict=True) if not is_seen]
        if unseen:
            problems.append(f"{node} does not see {unseen[0]}: a sweep has to be in a folder that all nodes share")
    return problems


class Keeper:
    """A Ray actor that starts a Python process on its node."""

    def __init__(self, arguments: Sequence[str], folder: str, variables: Mapping[str, str], log: str) -> None:
        with open(log, "ab") as out, _unblocked():
            self.process = subprocess.Popen(
                [sys.executable, "-P", *arguments],  # nothing is imported from the current folder
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name not in NOT_INHERITED} | dict(variables),
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def begun(self) -> None:
        """Return once the process has started."""

    def wait(self) -> int:
        """Return the exit code of the process, or the negative signal number if a signal ended the process."""
        return self.process.wait()

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextmanager
def _unblocked() -> Iterator[None]:
    """Unblock SIGINT and SIGTERM for new processes, which otherwise inherit a block of SIGINT from Ray's process."""
    before = pthread_sigmask(SIG_UNBLOCK, SIGNAL_CODES)
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


class NodeProcess:
    """A Python process on the first node with room for it. Has the interface of subprocess.Popen.

    The process reserves `cpus`, `memory` [bytes] and `gpus`, a share of the only GPU that it sees, and runs in a folder
    with the same path as the current folder. `variables` are added to the node's environment, and the output is
    appended to `log`. If the node or the Keeper dies, the exit code is -SIGKILL.
    """

    def __init__(
        self, arguments: Sequence[str], variables: Mapping[str, str], log: Path, cpus: float, memory: int, gpus: float
    ) -> None:
        options = {"num_cpus": cpus, "num_gpus": gpus, "memory": memory, "max_restarts": 0, "max_concurrency": 2}
        # By default, Ray kills the process together with its Keeper, before the process can save a checkpoint.
        own = {"RAY_kill_child_processes_on_worker_exit": "0"}
        keeper = ray.remote(**options, scheduling_strategy="SPREAD", runtime_env={"env_vars": own})(Keeper)
        self.returncode: int | None = None
        self._log = log
        cluster = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}  # for ray.address=auto in the new process
        self._keeper = keeper.remote(list(arguments), os.getcwd(), {**variables, **cluster}, str(log))
        self._begun, self._end = self._keeper.begun.remote(), self._keeper.wait.remote()

    def has_begun(self) -> bool:
        return _is_ready(self._begun)

    def poll(self) -> int | None:
        if self.returncode is None and _is_ready(self._end):
            try:
                self.returncode = get(self._end)
            except ActorUnavailable:
                self._end = self._keeper.wait.remote()
            except ActorDied as error:
                self.returncode = -SIGKILL
                with suppress(OSError), self._log.open("a") as log:
                    log.write(f"error: its node, or Ray's process on it, died: {error}\n")
            else:
                self.kill()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process. A process that waits for room ends with the exit code of the signal."""
        if self.has_begun():
            self._keeper.send_signal.remote(number)
        elif self.returncode is None:
            self.returncode = SIGNAL_CODES[Signals(number)]
            self.kill()

    def kill(self) -> None:
        ray.kill(self._keeper)


def _is_ready(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])
