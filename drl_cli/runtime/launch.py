"""Launch: starts Ray, runs the program, and leaves a complete run folder whatever the end was."""

import datetime
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from drl_cli.metrics.console import Console
from drl_cli.runtime.checkpoint import write_json
from drl_cli.runtime.config import Config
from drl_cli.runtime.errors import RoleLost, RunError
from drl_cli.runtime.handles import RayRuntime
from drl_cli.runtime.orchestrator import Orchestrator
from drl_cli.runtime.program import build
from drl_cli.runtime.progress import Progress
from drl_cli.types import EnvSpec

log = logging.getLogger(__name__)
STATUS = {0: "done", 5: "diverged", 75: "interrupted", 130: "interrupted"}


class RaySession:
    """A Ray session of our own, started in a thread so that the rest can prepare meanwhile.

    The thread lives as long as the session: Ray's processes end with the thread that started them.
    """

    def __init__(self, object_store_mb: int) -> None:
        self._up, self._end = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._memory = object_store_mb * 2**20
        threading.Thread(target=self._run, name="ray-session", daemon=True).start()

    def wait(self) -> None:
        """Until Ray is there; raises RoleLost when it could not be started."""
        self._up.wait()
        if self._error is not None:
            raise RoleLost(f"Ray did not start: {self._error}") from self._error

    def is_up(self) -> bool:
        """Whether `wait` would return at once."""
        return self._up.is_set()

    def close(self) -> None:
        """End the session and all processes in it."""
        self._up.wait()
        if self._error is None:
            import ray

            ray.shutdown()
        self._end.set()

    def _run(self) -> None:
        # One thread per process for numpy and torch (the trainer sets its own number); see all devices; quiet.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
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

        ray.shutdown()  # what a failed attempt left
        ray.init(
            address="local",
            _node_ip_address="127.0.0.1",
            include_dashboard=False,
            object_store_memory=self._memory,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )


def run(config: Config, spec: EnvSpec, folder: Path, record: dict[str, Any], started: float) -> dict[str, Any]:
    """Train in a prepared run folder; returns the summary. No exception leaves it but a bug of this function's own."""
    console = Console(
        sys.stdout, f"{config.env.name} {config.algo.name} {config.mode}", config.total_env_steps,
        config.stop.return_, config.logger.console_s,
    )  # fmt: skip
    session = None if config.debug.in_process else RaySession(config.ray.object_store_mb)
    progress = Progress(config, started, folder / "trace.jsonl" if config.debug.trace else None)
    orchestrator: Orchestrator | None = None
    exit_code = 0
    with _log_to(folder / "train.log"):
        try:
            ray = RayRuntime(str(folder / "workers"), session.wait) if session else None
            is_up = session.is_up if session else lambda: True
            orchestrator = build(config, spec, folder, ray, is_up, progress, console)
            with _signals(orchestrator) as received:
                orchestrator.run()
                orchestrator.finish()
            exit_code = 0 if not received else 130 if received[0] == signal.SIGINT else 75
        except BaseException as error:
            exit_code = _report_error(error, folder)
        finally:
            console.close()
        summary = summarise(config, folder, record, progress, orchestrator, exit_code)
        _close(orchestrator, session, str(summary["status"]))
    return summary


def summarise(
    config: Config,
    folder: Path,
    record: dict[str, Any],
    progress: Progress,
    orchestrator: Orchestrator | None,
    exit_code: int,
) -> dict[str, Any]:
    """Write summary.json and the final run.json."""
    status = STATUS.get(exit_code, "failed")
    summary: dict[str, Any] = {
        "run_id": record["id"],
        "status": status,
        "exit_code": exit_code,
        "env": config.env.name,
        "algo": config.algo.name,
        "mode": config.mode,
        "seed": config.seed,
    }
    waited, skipped = (orchestrator.worker_wait_s(), orchestrator.manage.skipped) if orchestrator else (0.0, 0)
    summary |= progress.summary(waited, skipped)
    for name in ("best", "last"):
        link = folder / "checkpoints" / name
        summary[f"checkpoint_{name}"] = f"checkpoints/{os.readlink(link)}" if link.is_symlink() else None
    write_json(folder / "summary.json", summary)
    write_json(folder / "run.json", record | {"status": status, "ended": _now()})
    return summary


def make_folder(config: Config) -> Path:
    """A new run folder: <output_dir>/<env>/<algo>-<mode>/<time>-s<seed>."""
    env = config.env.name.replace("/", "_").replace(":", "_")
    parent = Path(config.output_dir).absolute() / env / f"{config.algo.name}-{config.mode}"
    while True:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        folder = parent / f"{stamp}-s{config.seed}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # another job took this microsecond
            continue
        (folder / "workers").mkdir()
        (folder / "checkpoints").mkdir()
        return folder


def run_record(config: Config, folder: Path, command: list[str]) -> dict[str, Any]:
    """What run.json says of a run that starts: who, when, where, with what."""
    packages = ("drl-cli", "ray", "torch", "gymnasium", "numpy", "hydra-core")
    return {
        "id": folder.name,
        "status": "running",
        "command": command,
        "started": _now(),
        "seed": config.seed,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "git_commit": _git_commit(),
        "cpus": os.cpu_count(),
    }


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@contextmanager
def _signals(orchestrator: Orchestrator) -> Iterator[list[int]]:
    """SIGINT and SIGTERM end the loop after what is under way, a second one at once; SIGUSR1 pauses and resumes."""
    received: list[int] = []

    def react(number: int, frame: FrameType | None) -> None:
        received.append(number)
        orchestrator.stop("signal")
        if len(received) > 1:
            raise KeyboardInterrupt

    def toggle(number: int, frame: FrameType | None) -> None:
        (orchestrator.resume if orchestrator.paused else orchestrator.pause)()

    handlers = {signal.SIGINT: react, signal.SIGTERM: react, signal.SIGUSR1: toggle}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Our log goes to train.log; warnings also to stderr, one line each."""
    root = logging.getLogger("drl_cli")
    root.setLevel(logging.INFO)
    root.propagate = False
    file, screen = logging.FileHandler(path), logging.StreamHandler(sys.stderr)
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
    (folder / "error.txt").write_text("".join(traceback.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        return 130
    if os.environ.get("DRL_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, RunError):
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"error: {type(error).__name__}: {error}\n  all of it: {folder / 'error.txt'}", file=sys.stderr)
    return 7 if isinstance(error, MemoryError | OSError) else 1


def _close(orchestrator: Orchestrator | None, session: RaySession | None, status: str) -> None:
    if orchestrator is not None:
        orchestrator.close(status)
    if session is not None:
        session.close()
