"""Run: trains in a prepared folder, and leaves it complete whatever the end was."""

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from drl_cli.errors import BUG, RESOURCES, USER_CODE, Diverged, RoleLost, RunError
from drl_cli.metrics.console import Console
from drl_cli.replay.store import row_bytes
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import write_arrays
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.place.handles import RayRuntime
from drl_cli.runtime.place.launch import Cluster, RaySession
from drl_cli.runtime.place.signals import Interrupted, Signals, catch
from drl_cli.runtime.program import build
from drl_cli.runtime.restore import Checkpoint, first_incarnation, restore
from drl_cli.runtime.run_folder import summarise
from drl_cli.types import EnvSpec, State, leaves
from drl_cli.utils.log_file import LogFile
from drl_cli.utils.outside import raised_by

log = logging.getLogger(__name__)

Session: TypeAlias = RaySession | Cluster


def object_store_mb(config: Config, spec: EnvSpec) -> int:
    """Megabytes for what is in flight: as configured, or 256, or four train calls' batches where these are more."""
    batches = 4 * config.updates_per_call * config.trainer.batch_size * 2 * row_bytes(leaves(spec.obs)) // 2**20
    return config.ray.object_store_mb or max(256, batches)


def run(
    config: Config,
    spec: EnvSpec,
    folder: Path,
    record: dict[str, Any],
    started: float,
    console: Console,
    *,
    cluster: Cluster | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """Train in a prepared run folder, from the checkpoint where one is given; returns the summary.

    `record` is what run.json says of the run, `started` when its process began [s since the epoch]; the `console` shows
    all but the end. No exception leaves this function but a bug of its own: what ended the run is in the summary's exit
    code.
    """
    progress = Progress(config, started, folder / "trace.jsonl" if config.debug.trace else None)
    session: Session | None = cluster
    orchestrator: Orchestrator | None = None
    with _log_to(folder / "train.log"), catch() as signals:
        try:
            if session is None and not config.debug.in_process:
                session = RaySession(object_store_mb(config, spec))
                if config.mode != "single":
                    session.start()
                    console.awaits("Ray")
            ray = _runtime(session, folder, signals) if session else None
            health = session.lost if session else lambda: None
            first = first_incarnation(checkpoint)
            orchestrator = build(config, spec, folder, progress, console, ray=ray, incarnation=first, health=health)
            console.awaits("the trainer and the workers")
            if isinstance(session, RaySession):
                session.start()  # mode=single: not before training can begin, which it would slow down
            if checkpoint is not None:
                restore(checkpoint, config, orchestrator)
            _train(orchestrator, signals)
            exit_code = signals.exit_code
        except BaseException as error:
            exit_code = _on_error(error, config, orchestrator, session, signals, folder)
        finally:
            signals.is_closing = True
        summary = summarise(config, folder, record, progress, orchestrator, exit_code)
        _close(orchestrator, session, str(summary["status"]), exit_code)
    return summary


def _runtime(session: Session, folder: Path, signals: Signals) -> RayRuntime:
    """Where roles run on Ray; it is waited for when the first one is spawned."""
    ready, nodes = partial(_ready, session, signals), [node.id for node in session.nodes]
    return RayRuntime(str(folder / "workers"), ready, session.is_up, nodes)


def _train(orchestrator: Orchestrator, signals: Signals) -> None:
    """From the first step to the last checkpoint; signals now end it in good order."""
    signals.soft, signals.toggle = orchestrator.interrupt, orchestrator.toggle_pause
    signals.is_updating = lambda: orchestrator.learning.training > 0
    orchestrator.run()
    orchestrator.finish()


def _on_error(
    error: BaseException,
    config: Config,
    orchestrator: Orchestrator | None,
    session: Session | None,
    signals: Signals,
    folder: Path,
) -> int:
    """Say what ended the run, and save what can be; returns the exit code."""
    exit_code = signals.exit_code
    if signals.has_raised:  # then it is Interrupted, or what a call of Ray's makes of that
        return exit_code
    lost = session.lost() if session and isinstance(error, RoleLost) else None
    code = _report_error(RoleLost(lost) if lost else error, config, folder)
    if not (exit_code and isinstance(error, RoleLost)):  # else the signal ended the role, too
        exit_code = code
    if orchestrator is not None and not (lost or isinstance(error, Diverged)):
        _rescue(orchestrator)
    return exit_code


def _close(orchestrator: Orchestrator | None, session: Session | None, status: str, exit_code: int) -> None:
    """End every role, and Ray with them."""
    if orchestrator is not None and not (session and session.lost()):
        orchestrator.close(status)
    if session is not None:
        session.close()
        if isinstance(session, RaySession) and session.is_stuck:
            atexit.register(session.leave, exit_code)


def _ready(session: Session, signals: Signals) -> None:
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
    before = root.level, root.propagate
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
        root.setLevel(before[0])
        root.propagate = before[1]
        file.close()


def _report_error(error: BaseException, config: Config, folder: Path) -> int:
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
    users = None if isinstance(error, MemoryError) else raised_by(error, config.outside_modules)
    what = f"{users} raised {type(error).__name__}" if users else type(error).__name__
    print(f"error: {what}: {error}\n  all of it: {folder / 'error.txt'}", file=sys.stderr)
    return USER_CODE if users else RESOURCES if isinstance(error, MemoryError | OSError) else BUG


def _keep_batch(batch: State, path: Path) -> None:
    try:
        write_arrays(path, batch)
    except OSError as error:
        print(f"  its batch could not be written to {path}: {error}", file=sys.stderr)
        return
    print(f"  its batch: {path}", file=sys.stderr)
