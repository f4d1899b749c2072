"""Nodes of a cluster that has been joined: which there are, what each says, and processes where Ray finds room."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIG_SETMASK, SIG_UNBLOCK, SIGKILL, Signals, pthread_sigmask
from typing import Any

from drl_cli.runtime.place.cluster import Node
from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, get
from drl_cli.runtime.place.signals import SIGNAL_CODES

ASK_S = 60.0  # that a node has to answer
OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID")  # variables of a process of Ray's that are not for what it starts


def live_nodes(only_here: bool = False) -> list[Node]:
    """Those that live and have a processor; or just that of this process."""
    import ray

    here = ray.get_runtime_context().get_node_id() if only_here else None
    return [
        Node(entry["NodeID"], entry["NodeManagerAddress"], held.get("CPU", 0.0), int(held.get("memory", 0)))
        for entry in sorted(ray.nodes(), key=lambda entry: str(entry["NodeID"]))
        for held in [entry["Resources"]]
        if entry["Alive"] and (entry["NodeID"] == here if only_here else held.get("CPU"))
    ]


def ask(nodes: Sequence[Node], look: Callable[..., object], *args: object) -> dict[Node, Any]:
    """What `look(*args)` returns on each node; the error where Ray could not run it, None without an answer in time."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(*args): node
        for node in nodes
    }
    answers: dict[Node, Any] = dict.fromkeys(nodes)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S)
    for ref in done:
        try:
            answers[asked[ref]] = ray.get(ref)
        except ray.exceptions.RayError as error:
            answers[asked[ref]] = error
    return answers


def unshared(nodes: Sequence[Node], folder: Path, work: Path) -> list[str]:
    """A line for each node that does not see what is written into `folder` here, or has no folder `work`."""
    secret = uuid.uuid4().hex
    probe = folder / f".{secret}"

    def look() -> tuple[bool, bool]:  # local, so that it travels by value
        return probe.is_file() and probe.read_text() == secret, work.is_dir()

    probe.write_text(secret)
    try:
        answers = ask(nodes, look)
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
    """The Ray actor that has a process, whose end comes with its own if the process asks the system for that."""

    def __init__(self, arguments: Sequence[str], folder: str, variables: Mapping[str, str], log: str) -> None:
        with open(log, "ab") as out, _unblocked():
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name not in OF_A_WORKER} | dict(variables),
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def begun(self) -> None:
        """Answers when the process is there."""

    def wait(self) -> int:
        """Its exit code, negative where a signal ended it."""
        return self.process.wait()

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextmanager
def _unblocked() -> Iterator[None]:
    """What is started inside gets SIGINT, which Ray blocks in its processes."""
    before = pthread_sigmask(SIG_UNBLOCK, SIGNAL_CODES)
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


class NodeProcess:
    """A process of this Python on the node where Ray has room for it first, with what subprocess.Popen has to say.

    It takes so many processors and bytes there, runs in the current folder's namesake with `variables` beside those of
    the node, and writes to the end of `log`. A process whose node or keeper dies has ended by SIGKILL.
    """

    def __init__(
        self, arguments: Sequence[str], variables: Mapping[str, str], log: Path, cpus: float, memory: int
    ) -> None:
        import ray

        options = {"num_cpus": cpus, "memory": memory, "max_restarts": 0, "max_concurrency": 2}
        # Else Ray ends with the keeper what it has started, at once; so the process can save what it has.
        own = {"RAY_kill_child_processes_on_worker_exit": "0"}
        keeper = ray.remote(**options, scheduling_strategy="SPREAD", runtime_env={"env_vars": own})(Keeper)
        self.returncode: int | None = None
        self._log = log
        cluster = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}  # which ray.address=auto finds there
        self._keeper = keeper.remote(list(arguments), os.getcwd(), {**variables, **cluster}, str(log))
        self._begun, self._end = self._keeper.begun.remote(), self._keeper.wait.remote()

    def has_begun(self) -> bool:
        """Whether Ray has found room for it."""
        return _is_there(self._begun)

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        if self.returncode is None and _is_there(self._end):
            try:
                self.returncode = get(self._end)
            except ActorUnavailable:
                self._end = self._keeper.wait.remote()
            except ActorDied as error:
                self.returncode = -SIGKILL
                with suppress(OSError), self._log.open("a") as log:
                    log.write(f"error: its node, or Ray's process there, died: {error}\n")
            else:
                self.kill()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the process; while it waits for room it has ended with that."""
        if self.has_begun():
            self._keeper.send_signal.remote(number)
        elif self.returncode is None:
            self.returncode = SIGNAL_CODES[Signals(number)]
            self.kill()

    def kill(self) -> None:
        """Its keeper's end, at once."""
        import ray

        ray.kill(self._keeper)


def _is_there(ref: Any) -> bool:
    import ray

    return bool(ray.wait([ref], timeout=0)[0])
