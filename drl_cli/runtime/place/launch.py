"""Start a Ray session for a run, or join an existing cluster."""

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

from drl_cli.config.config import Config
from drl_cli.envs.config import EnvConfig
from drl_cli.errors import ClusterUnfit, RoleLost, UsageError
from drl_cli.runtime.place import cluster
from drl_cli.runtime.place.cluster import Answer
from drl_cli.runtime.place.cluster_nodes import live_nodes, node_gpus, on_each
from drl_cli.runtime.place.handles import ray
from drl_cli.runtime.place.session_folder import SessionFolder, protect_token
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.lazy import LazyModule
from drl_cli.utils.machine import Node
from drl_cli.version import __version__

log = logging.getLogger(__name__)
ray_internals = LazyModule("drl_cli.runtime.place.ray_internals")  # imports Ray

WAIT_S = 300.0  # maximum time [s] of a start of Ray
START_S = 2.0  # maximum time [s] that `close` waits if Ray is still starting
LOOK_S = 2.0  # time [s] between two looks at the nodes of a cluster
PROBLEM_S = 0.5  # time [s] between two looks whether Ray's processes live
DIRECT_BYTES = 2_000_000
"""Smaller values are sent with calls and answers. This takes less CPU time than Ray's object store."""


class RaySession:
    """A Ray session for one run. A thread starts the session while the process prepares the run."""

    nodes: Sequence[Node] = ()
    is_stuck = False
    problem: str | None = None
    """What `lost` returned last. The session's thread asks it every PROBLEM_S, so that no pass of the loop has to."""
    folder: SessionFolder | None = None  # of Ray's sockets and logs, once the session starts

    def __init__(self, object_store_mb: int) -> None:
        self._up, self._end = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._memory = object_store_mb * 2**20
        self._processes: set[psutil.Process] = set()
        # The thread lives as long as the session, because Ray's processes end with the thread that started them.
        self._thread = threading.Thread(target=self._run, name="ray-session", daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Wait until Ray is running. Raise RoleLost if Ray could not start, or takes longer than WAIT_S."""
        self.start()
        if not self._up.wait(WAIT_S):
            raise RoleLost(f"Ray did not start within {WAIT_S:g} s")
        if self._error is not None:
            raise RoleLost(f"Ray did not start: {self._error}") from self._error

    def is_up(self) -> bool:
        return self._up.is_set()

    def lost(self) -> str | None:
        """Return a message if one of Ray's main processes died, which ends all roles. Return None if all are alive."""
        if not self._up.is_set() or self._error is not None:
            return None
        names = sorted(ray_internals.dead_processes() & {"gcs_server", "raylet"})
        return f"Ray's {' and '.join(names)} died, and all roles with it" if names else None

    def close(self) -> None:
        """End the session. If Ray is still starting, only set `is_stuck`; then `leave` must end this process."""
        if self._thread.ident is None:  # the session was never started
            return
        if not self._up.wait(START_S):
            self.is_stuck = True
            return
        if self._error is None:
            self._note_processes()
            ray.shutdown()
        self._kill_processes()
        if self.folder is not None and self._error is None:  # the next session removes the logs of a failed start
            self.folder.remove()
        self._end.set()

    def leave(self, exit_code: int) -> NoReturn:
        """Kill Ray's processes and exit at once. Otherwise Ray, which is starting, would change the exit code."""
        sys.stdout.flush()
        self._kill_processes()
        os._exit(exit_code)

    def _run(self) -> None:
        os.environ.update(cluster.process_variables())
        # Make Ray listen only on 127.0.0.1. Otherwise Ray would replace 127.0.0.1 by the machine's address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_worker_niceness", "0")  # by default 15, so other programs would starve the trainer
        os.environ.setdefault("RAY_max_direct_call_object_size", str(DIRECT_BYTES))
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # this package reports lost roles
        # Record no calls for the dashboard, which does not run: 100,000 calls would take 350 MB in gcs_server.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        for attempt in (1, 2):  # on a busy machine the first attempt may time out
            try:
                self._start()
                self._error = None
                break
            except BaseException as error:
                self._error = error
                log.info("Ray did not start, attempt %d: %s", attempt, error)
        self._up.set()
        while not self._end.wait(PROBLEM_S):
            self.problem = self.lost()

    def _start(self) -> None:
        self.folder = self.folder or SessionFolder()
        protect_token()
        ray_internals.stand_apart()
        ray.shutdown()  # clean up after a failed attempt
        ray_internals.draw_apart()
        with ray_internals.fewer_services():
            ray.init(
                address="local",
                _temp_dir=str(self.folder.path),
                _node_ip_address="127.0.0.1",
                include_dashboard=False,
                object_store_memory=self._memory,
                logging_level=logging.ERROR,
                log_to_driver=False,
                job_config=ray_internals.job_config(),
            )
        ray_internals.log_deaths()
        self._note_processes()

    def _kill_processes(self) -> None:
        """Kill all processes of the session, including the children of a Ray process that was killed."""
        self._note_processes()
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _note_processes(self) -> None:
        self._processes |= set(psutil.Process().children(recursive=True))


class Cluster:
    """An existing cluster that this process has joined. The cluster keeps running at the end.

    `nodes` can all run the roles of this run: each node has created the environment (in `folder`, if the node has this
    folder) and has imported the user's `modules`. `lacking` are the nodes without drl_cli, to which the package was
    sent. With `only_here`, only the node of this process is used. Raise ClusterUnfit with all problems.
    """

    problem: str | None = None  # if a node is lost, the calls to its roles fail

    def __init__(
        self, address: str, env: EnvConfig, modules: Sequence[str], only_here: bool = False, folder: str = ""
    ) -> None:
        self._only_here, self._folder, self._env, self._modules = only_here, folder, env, modules
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        if address == "auto":
            address = cluster.found_here(ray_internals.own_address(), ray_internals.all_addresses)
        if cluster.take_token(address):
            ray_internals.read_variables()
        if problem := cluster.unreachable(address):
            raise ClusterUnfit([problem])
        try:
            files = cluster.shipped_modules(modules)
        except ValueError as error:
            raise ClusterUnfit([str(error)]) from error
        self._ours = Answer(platform.python_version(), version("ray"), __version__, None)
        answers = self._join(address, files)
        lacking = [node for node, answer in answers.items() if answer is not None and answer.package is None]
        problems = cluster.unfit({node: answer for node, answer in answers.items() if node not in lacking}, self._ours)
        if lacking and not problems:  # join again, and send drl_cli to the nodes, too
            answers = self._join(address, [*files, Path(__file__).parents[2]])
            problems = cluster.unfit(answers, self._ours)
        if problems or not answers:
            self.close()
            raise ClusterUnfit(problems or [f"ray.address: the cluster at {address} has no node with a CPU"])
        self.nodes: Sequence[Node] = list(answers)
        self.lacking = lacking

    def gpus(self) -> list[Gpu]:
        """Return the GPUs of the nodes. Each node tries its own."""
        return node_gpus(self.nodes)

    def offers(self) -> Sequence[Node]:
        """Return the live nodes that can run roles, as of the last look. The first call starts a thread that looks.

        The thread checks each new node as the constructor does, and prints a warning if the node can't run roles.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="nodes", daemon=True)
            self._thread.start()
        return self.nodes

    def _look(self) -> None:
        fit = {node.id for node in self.nodes}
        known = set(fit)
        while not self._end.wait(LOOK_S):
            try:
                live = live_nodes()
                for node in live:
                    if node.id not in known:
                        problems = cluster.unfit(ask_nodes([node], self._env, self._modules, self._folder), self._ours)
                        known.add(node.id)
                        fit |= set() if problems else {node.id}
                        for problem in problems:
                            log.warning("%s; it has joined the cluster, and this run does not use it", problem)
                self.nodes = [node for node in live if node.id in fit]
            except Exception as error:  # Ray does not answer; if it is gone, the calls to the roles fail
                log.info("the nodes of the cluster can't be looked at: %s", error)

    def wait(self) -> None:
        """Do nothing, because the cluster is already running."""

    def is_up(self) -> bool:
        return True

    def lost(self) -> str | None:
        return None

    def close(self) -> None:
        """Leave the cluster. Ray ends the processes of this run."""
        self._end.set()
        ray.shutdown()

    def _join(self, address: str, files: Sequence[Path]) -> dict[Node, Answer | None]:
        """Join the cluster, send these files and packages to all processes, and return the answers of the nodes."""
        from concurrent.futures import ThreadPoolExecutor  # most commands join no cluster

        ray.shutdown()
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # keep Ray's warnings off the terminal
        try:
            # In the main thread, Ray would replace the handler of SIGTERM.
            with _no_stderr(), ThreadPoolExecutor(1) as thread:  # Ray writes a line about its log level to the terminal
                thread.submit(
                    ray.init,
                    address=address,
                    runtime_env={"env_vars": cluster.process_variables(), "py_modules": [str(path) for path in files]},
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    job_config=ray_internals.job_config(),
                ).result()
        except Exception as error:
            raise ClusterUnfit([cluster.why_not_joined(address, error)]) from error
        ray_internals.log_deaths()
        return ask_nodes(live_nodes(self._only_here), self._env, self._modules, self._folder)


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard what this process, C++ code included, writes to stderr."""
    sys.stderr.flush()
    terminal, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(null)


def ask_nodes(
    nodes: Sequence[Node], env: EnvConfig, modules: Sequence[str], folder: str = ""
) -> dict[Node, Answer | None]:
    """Return the answer of each node, or None for a node that does not answer within a minute."""

    def look(pickled: bytes) -> tuple[str, str, str | None, str | None]:  # local, so that Ray pickles its code
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
    for node, answer in on_each(nodes, look, pickle.dumps(env)).items():
        if isinstance(answer, Exception):
            lines = [line.strip() for line in str(answer).splitlines() if line.strip()]
            answers[node] = Answer(platform.python_version(), version("ray"), None, lines[-1])
        else:
            answers[node] = answer and Answer(*answer)
    return answers


def join_cluster(config: Config) -> Cluster:
    """Join the Ray cluster at `ray.address`. Raise UsageError if it does not answer or a node can't run the roles."""
    assert config.ray.address is not None
    try:
        return Cluster(config.ray.address, config.env, config.outside_modules, only_here=config.is_one_process)
    except ClusterUnfit as error:
        raise UsageError(error.problems, error.exit_code) from error
