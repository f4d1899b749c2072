"""Launch: Ray, started for a run or joined where it is."""

import logging
import os
import pickle
import platform
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import psutil

from drl_cli.envs.config import EnvConfig
from drl_cli.errors import ClusterUnfit, RoleLost
from drl_cli.runtime.place.cluster import (
    Answer,
    Node,
    process_variables,
    shipped_modules,
    unfit,
    unreachable,
    why_not_joined,
)
from drl_cli.runtime.place.nodes import ask, live_nodes
from drl_cli.version import __version__

log = logging.getLogger(__name__)

START_S = 2.0  # that the end of a run waits for Ray to have started
DIRECT_BYTES = 2_000_000
"""What is smaller goes along with calls and answers: by way of Ray's store it would take more processor time."""


class RaySession:
    """A Ray session of our own, started in a thread so that the rest can prepare meanwhile.

    The thread lives as long as the session: Ray's processes end with the thread that started them.
    """

    nodes: Sequence[Node] = ()
    is_stuck = False

    def __init__(self, object_store_mb: int) -> None:
        self._up, self._end = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._memory = object_store_mb * 2**20
        self._processes: set[psutil.Process] = set()
        self._thread = threading.Thread(target=self._run, name="ray-session", daemon=True)

    def start(self) -> None:
        """Begin, if that has not been done."""
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Until Ray is there; raises RoleLost when it could not be started."""
        self.start()
        self._up.wait()
        if self._error is not None:
            raise RoleLost(f"Ray did not start: {self._error}") from self._error

    def is_up(self) -> bool:
        """Whether `wait` would return at once."""
        return self._up.is_set()

    def lost(self) -> str | None:
        """What died of Ray itself, and with it every role."""
        if not self.is_up() or self._error is not None:
            return None
        import ray

        node = ray._private.worker._global_node
        dead = {name for name, _ in node.dead_processes()} if node is not None else set()
        names = sorted(dead & {"gcs_server", "raylet"})
        return f"Ray's {' and '.join(names)} died, and all roles with it" if names else None

    def close(self) -> None:
        """End the session and all processes in it; with this process only, when Ray is still starting."""
        if self._thread.ident is None:  # it was never begun
            return
        if not self._up.wait(START_S):
            self.is_stuck = True
            return
        if self._error is None:
            import ray

            self._note_processes()
            ray.shutdown()
        self._kill_processes()
        self._end.set()

    def leave(self, exit_code: int) -> NoReturn:
        """End this process and Ray's at once: a thread is inside Ray, which would end it in a way of its own."""
        sys.stdout.flush()
        self._kill_processes()
        os._exit(exit_code)

    def _run(self) -> None:
        os.environ.update(process_variables())
        # Ray's way to listen on loopback alone; it would replace 127.0.0.1 by the machine's address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: whatever runs beside would starve the trainer
        os.environ.setdefault("RAY_max_direct_call_object_size", str(DIRECT_BYTES))
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of answers nobody asked for: we name who died
        # No record of each call, 3 KB in gcs_server for a dashboard that does not run here: 350 MB at 100,000 calls.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([os.getcwd(), *sys.path[1:]]))
        for attempt in (1, 2):  # on a machine that is busy it may be too slow the first time
            try:
                self._start()
                self._error = None
                break
            except BaseException as error:
                self._error = error
                log.info("Ray did not start, attempt %d: %s", attempt, error)
        self._up.set()
        self._end.wait()

    def _start(self) -> None:
        import ray

        _stand_apart()
        ray.shutdown()  # what a failed attempt left
        with _fewer_services():
            ray.init(
                address="local",
                _node_ip_address="127.0.0.1",
                include_dashboard=False,
                object_store_memory=self._memory,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        _have_ray_log()
        self._note_processes()

    def _kill_processes(self) -> None:
        """What Ray's own processes, killed themselves, did not end, too."""
        self._note_processes()
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _note_processes(self) -> None:
        """All that this process has started: what is left of it later is to be ended."""
        self._processes |= set(psutil.Process().children(recursive=True))


class Cluster:
    """A cluster that exists, joined: each of its `nodes` can run our roles. It is left running at the end.

    `modules` are the user's, and have been imported here, which says what they need there; `only_here` leaves all nodes
    but this one out. The environment is tried in `folder`, where the node has that. Where our package was `lacking`, it
    was shipped. Raises ClusterUnfit with all problems.
    """

    def __init__(
        self, address: str, env: EnvConfig, modules: Sequence[str], only_here: bool = False, folder: str = ""
    ) -> None:
        self._only_here, self._folder = only_here, folder
        if address != "auto" and (problem := unreachable(address)):
            raise ClusterUnfit([problem])
        try:
            files = shipped_modules(modules)
        except ValueError as error:
            raise ClusterUnfit([str(error)]) from error
        ours = Answer(platform.python_version(), version("ray"), __version__, None)
        answers = self._join(address, env, modules, files)
        lacking = [node for node, answer in answers.items() if answer is not None and answer.package is None]
        problems = unfit({node: answer for node, answer in answers.items() if node not in lacking}, ours)
        if lacking and not problems:  # they get ours
            answers = self._join(address, env, modules, [*files, Path(__file__).parents[2]])
            problems = unfit(answers, ours)
        if problems or not answers:
            self.close()
            raise ClusterUnfit(problems or [f"ray.address: the cluster at {address} has no node with a CPU"])
        self.nodes, self.lacking = list(answers), lacking

    def wait(self) -> None:
        """It is there."""

    def is_up(self) -> bool:
        """It is."""
        return True

    def lost(self) -> str | None:
        """Nothing that is known here: its nodes are watched one by one."""
        return None

    def close(self) -> None:
        """Disconnect; our processes in it end."""
        import ray

        ray.shutdown()

    def _join(
        self, address: str, env: EnvConfig, modules: Sequence[str], files: Sequence[Path]
    ) -> dict[Node, Answer | None]:
        """Connect, with these files and packages for every process, and ask the nodes."""
        import ray

        self.close()
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        try:
            ray.init(
                address=address,
                runtime_env={"env_vars": process_variables(), "py_modules": [str(path) for path in files]},
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except Exception as error:
            raise ClusterUnfit([why_not_joined(address, error)]) from error
        _have_ray_log()
        return _ask(live_nodes(self._only_here), env, modules, self._folder)


def _stand_apart() -> None:
    """Ray's processes get groups of their own: a signal to ours is for us, who end them when all is saved."""
    from ray._private import utils

    if not hasattr(utils, "set_kill_on_parent_death_linux"):
        return
    end_with_parent = utils.set_kill_on_parent_death_linux

    def prepare() -> None:  # in the new process, before it is Ray's
        end_with_parent()
        os.setpgid(0, 0)

    utils.set_kill_on_parent_death_linux = prepare


@contextmanager
def _fewer_services() -> Iterator[None]:
    """Ray starts without what nobody here asks: the dashboard's server, the monitors of logs and of cluster size.

    Each would be a Python process of 80 MB, and Ray would not be there before all of them had begun.
    """
    from ray._private.node import Node

    names = ("start_api_server", "start_log_monitor", "start_monitor")
    starts = {name: getattr(Node, name) for name in names if hasattr(Node, name)}
    for name in starts:
        setattr(Node, name, lambda self, **options: None)
    try:
        yield
    finally:
        for name, start in starts.items():
            setattr(Node, name, start)


def _have_ray_log() -> None:
    """What Ray has to say of a dead process goes to our log: the user gets a line from us."""
    import ray

    ray._private.worker.print_to_stdstream = lambda data, **_: log.info("%s", " ".join(data["lines"]))


def _ask(nodes: Sequence[Node], env: EnvConfig, modules: Sequence[str], folder: str = "") -> dict[Node, Answer | None]:
    """What each node says of itself; None from those that say nothing within a minute."""

    def look(pickled: bytes) -> tuple[str, str, str | None, str | None]:  # local, so that it travels by value
        import os
        import platform
        from importlib import import_module
        from importlib.metadata import version

        package, problem = None, None
        try:
            package = import_module("drl_cli").__version__
            from drl_cli.envs.make import read_spec

            if os.path.isdir(folder):
                os.chdir(folder)
            read_spec(pickle.loads(pickled))
            for module in modules:
                import_module(module)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return platform.python_version(), version("ray"), package, problem

    answers: dict[Node, Answer | None] = {}
    for node, answer in ask(nodes, look, pickle.dumps(env)).items():
        if isinstance(answer, Exception):
            lines = [line.strip() for line in str(answer).splitlines() if line.strip()]
            answers[node] = Answer(platform.python_version(), version("ray"), None, lines[-1])
        else:
            answers[node] = answer and Answer(*answer)
    return answers
