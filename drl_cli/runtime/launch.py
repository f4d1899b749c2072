"""Launch: starts Ray, runs the program, and leaves a complete run folder whatever the end was."""

import atexit
import logging
import os
import pickle
import platform
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import psutil

import drl_cli
from drl_cli.envs.config import EnvConfig
from drl_cli.metrics.console import Console
from drl_cli.runtime.checkpoint import write_arrays
from drl_cli.runtime.cluster import Answer, Node, process_variables, shipped_modules, unfit, unreachable, why_not_joined
from drl_cli.runtime.config import Config
from drl_cli.runtime.errors import ClusterUnfit, Diverged, RoleLost, RunError
from drl_cli.runtime.handles import RayRuntime
from drl_cli.runtime.orchestrator import Orchestrator
from drl_cli.runtime.program import build
from drl_cli.runtime.progress import Progress
from drl_cli.runtime.restore import Checkpoint, restore
from drl_cli.runtime.run_folder import summarise
from drl_cli.runtime.signals import Interrupted, Signals, catch
from drl_cli.types import EnvSpec, State
from drl_cli.utils.log_file import LogFile

log = logging.getLogger(__name__)

START_S = 2.0  # that the end of a run waits for Ray to have started


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

    Raises ClusterUnfit with all problems. The environment has been imported here, which says what it needs there.
    """

    def __init__(self, address: str, env: EnvConfig) -> None:
        if address != "auto" and (problem := unreachable(address)):
            raise ClusterUnfit([problem])
        try:
            modules = shipped_modules(env.id)
        except ValueError as error:
            raise ClusterUnfit([str(error)]) from error
        ours = Answer(platform.python_version(), version("ray"), drl_cli.__version__, None)
        answers = self._join(address, env, modules)
        lacking = {node for node, answer in answers.items() if answer is not None and answer.package is None}
        problems = unfit({node: answer for node, answer in answers.items() if node not in lacking}, ours)
        if lacking and not problems:  # they get ours
            answers = self._join(address, env, [*modules, Path(drl_cli.__file__).parent])
            problems = unfit(answers, ours)
        if problems or not answers:
            self.close()
            raise ClusterUnfit(problems or [f"ray.address: the cluster at {address} has no node with a CPU"])
        self.nodes = list(answers)

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

    def _join(self, address: str, env: EnvConfig, modules: list[Path]) -> dict[Node, Answer | None]:
        """Connect, with these files and packages for every process, and ask the nodes."""
        import ray

        self.close()
        try:
            ray.init(
                address=address,
                runtime_env={"env_vars": process_variables(), "py_modules": [str(path) for path in modules]},
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except Exception as error:
            raise ClusterUnfit([why_not_joined(address, error)]) from error
        _have_ray_log()
        nodes = [
            Node(entry["NodeID"], entry["NodeManagerAddress"], entry["Resources"]["CPU"])
            for entry in sorted(ray.nodes(), key=lambda entry: str(entry["NodeID"]))
            if entry["Alive"] and entry["Resources"].get("CPU")
        ]
        return _ask(nodes, env)


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


def _have_ray_log() -> None:
    """What Ray has to say of a dead process goes to our log: the user gets a line from us."""
    import ray

    ray._private.worker.print_to_stdstream = lambda data, **_: log.info("%s", " ".join(data["lines"]))


def _ask(nodes: Sequence[Node], env: EnvConfig) -> dict[Node, Answer | None]:
    """What each node says of itself; None from those that say nothing within a minute."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(pickled: bytes) -> tuple[str, str, str | None, str | None]:  # local, so that it travels by value
        import platform
        from importlib.metadata import version

        package, problem = None, None
        try:
            import drl_cli

            package = drl_cli.__version__
            from drl_cli.envs.make import read_spec

            read_spec(pickle.loads(pickled))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return platform.python_version(), version("ray"), package, problem

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(
            pickle.dumps(env)
        ): node
        for node in nodes
    }
    answers: dict[Node, Answer | None] = dict.fromkeys(nodes)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=60)
    for ref in done:
        try:
            answers[asked[ref]] = Answer(*ray.get(ref))
        except ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answers[asked[ref]] = Answer(platform.python_version(), version("ray"), None, lines[-1])
    return answers


def object_store_mb(config: Config, spec: EnvSpec) -> int:
    """Megabytes for what is in flight: as configured, or 256, or four train calls' batches where these are more."""
    obs = spec.obs_size * (1 if spec.obs.dtype == "uint8" else 4)
    batches = 4 * config.updates_per_call * config.trainer.batch_size * 2 * obs // 2**20
    return config.ray.object_store_mb or max(256, batches)


def run(
    config: Config,
    spec: EnvSpec,
    folder: Path,
    record: dict[str, Any],
    started: float,
    cluster: Cluster | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """Train in a prepared run folder, from the checkpoint where one is given; returns the summary.

    No exception leaves it but a bug of this function's own.
    """
    console = Console(
        sys.stdout, f"{config.env.name} {config.algo.name} {config.mode}", config.total_env_steps,
        config.stop.return_, config.logger.console_s,
    )  # fmt: skip
    progress = Progress(config, started, folder / "trace.jsonl" if config.debug.trace else None)
    session: RaySession | Cluster | None = cluster
    orchestrator: Orchestrator | None = None
    with _log_to(folder / "train.log"), catch() as signals:
        try:
            if session is None and not config.debug.in_process:
                session = RaySession(object_store_mb(config, spec))
                if config.mode != "single":
                    session.start()
            nodes = [node.id for node in session.nodes] if session else []
            ready = partial(_ready, session, signals) if session else lambda: None
            ray = RayRuntime(str(folder / "workers"), ready, nodes) if session else None
            is_up = session.is_up if session else lambda: True
            incarnation = checkpoint.state["incarnation"] + 1 if checkpoint else 0
            orchestrator = build(config, spec, folder, ray, is_up, progress, console, incarnation)
            if isinstance(session, RaySession):
                session.start()  # mode=single: not before training can begin, which it would slow down
            if checkpoint is not None:
                restore(checkpoint, config, orchestrator)
            if session is not None:
                orchestrator.health = session.lost
            signals.soft, signals.toggle = orchestrator.interrupt, orchestrator.toggle_pause
            orchestrator.run()
            orchestrator.finish()
            exit_code = signals.exit_code
        except BaseException as error:
            exit_code = signals.exit_code
            if not signals.has_raised:  # else it is Interrupted, or what a call of Ray's makes of that
                lost = session.lost() if session and isinstance(error, RoleLost) else None
                code = _report_error(RoleLost(lost) if lost else error, folder)
                if not (exit_code and isinstance(error, RoleLost)):  # else the signal ended the role, too
                    exit_code = code
                if orchestrator is not None and not (lost or isinstance(error, Diverged)):
                    _rescue(orchestrator)
        finally:
            signals.is_closing = True
            console.close()
        summary = summarise(config, folder, record, progress, orchestrator, exit_code)
        if orchestrator is not None and not (session and session.lost()):
            orchestrator.close(str(summary["status"]))
        if session is not None:
            session.close()
            if isinstance(session, RaySession) and session.is_stuck:
                atexit.register(session.leave, exit_code)
    return summary


def _ready(session: RaySession | Cluster, signals: Signals) -> None:
    """Ray is there, and signals are ours again; raises RoleLost when it is not there any more.

    To put a value into a Ray that is gone would end this process at once, without a word.
    """
    session.wait()
    signals.install()
    if problem := session.lost():
        raise RoleLost(problem)


def _rescue(orchestrator: Orchestrator) -> None:
    """Save what there is; what goes wrong now is in the log, after what went wrong before."""
    try:
        orchestrator.rescue()
    except (Exception, Interrupted):
        log.info("nothing could be saved at the end", exc_info=True)


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Our log goes to train.log; warnings also to stderr, one line each."""
    root = logging.getLogger("drl_cli")
    root.setLevel(logging.INFO)
    root.propagate = False
    file, screen = LogFile(path), logging.StreamHandler(sys.stderr)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    screen.setFormatter(logging.Formatter("warning: %(message)s"))
    screen.setLevel(logging.WARNING)
    root.addHandler(file)
    root.addHandler(screen)
    try:
        yield
    finally:
        root.removeHandler(file)
        root.removeHandler(screen)
        file.close()


def _report_error(error: BaseException, folder: Path) -> int:
    """error.txt has all of it, the user sees a line; returns the exit code."""
    try:
        (folder / "error.txt").write_text("".join(traceback.format_exception(error)))
    except OSError as full:
        log.warning("error.txt could not be written: %s", full)
    if os.environ.get("DRL_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, RunError):
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, Diverged) and error.batch:
            _keep_batch(error.batch, folder / "diverged.safetensors")
        return error.exit_code
    print(f"error: {type(error).__name__}: {error}\n  all of it: {folder / 'error.txt'}", file=sys.stderr)
    return 7 if isinstance(error, MemoryError | OSError) else 1


def _keep_batch(batch: State, path: Path) -> None:
    try:
        write_arrays(path, batch)
    except OSError as error:
        print(f"  its batch could not be written to {path}: {error}", file=sys.stderr)
        return
    print(f"  its batch: {path}", file=sys.stderr)
