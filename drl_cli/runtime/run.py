"""Run: train in a prepared folder and leave the folder complete, however the run ends."""

import atexit
import logging
import os
import statistics
import traceback
from pathlib import Path
from typing import Any, TypeAlias

from drl_cli.config.config import Config
from drl_cli.config.rows import most_open_steps
from drl_cli.errors import (
    BUG,
    DONE,
    RESOURCES,
    USAGE,
    USER_CODE,
    Diverged,
    EnvironmentFailed,
    NotSaved,
    RoleLost,
    RunError,
    UserCodeFailed,
    memory_problem,
)
from drl_cli.metrics.console import Console
from drl_cli.replay.store import row_bytes
from drl_cli.run_folder.checkpoint import Checkpoint, write_arrays
from drl_cli.run_folder.run_json import write_end
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.place.launch import Cluster, RaySession
from drl_cli.runtime.place.ray_runtime import RayRuntime
from drl_cli.runtime.place.signals import Interrupted, Signals
from drl_cli.runtime.process_graph import build
from drl_cli.runtime.restore import first_incarnation, restore
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.clock import now
from drl_cli.utils.files import regular
from drl_cli.utils.shown import tell

log = logging.getLogger(__name__)

Session: TypeAlias = RaySession | Cluster


def object_store_mb(config: Config, spec: EnvSpec) -> int:
    """Return the object store's size [MB]: as configured, or enough for four train calls and at least 256."""
    batches = 4 * config.updates_per_call * config.trainer.batch_size * 2 * row_bytes(leaves(spec.obs)) // 2**20
    return config.ray.object_store_mb or max(256, batches)


def run(
    config: Config,
    spec: EnvSpec,
    folder: Path,
    record: dict[str, Any],
    started: float,
    console: Console,
    signals: Signals,
    *,
    cluster: Cluster | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """Train in a prepared run folder, from a checkpoint if one is given. Return the summary.

    `record` is the content of run.json. `started` is the start of the process [s since the epoch]. `console` shows
    everything except the end of the run. `signals` handles signals before, during and after the run. An error that ends
    the run is reported here and sets the exit code in the summary.
    """
    progress = Progress(config, started, folder / "trace.jsonl" if config.debug.trace else None)
    session: Session | None = cluster
    orchestrator: Orchestrator | None = None
    try:
        signals.begin_raising()
        if session is None and not config.debug.in_process:
            session = RaySession(object_store_mb(config, spec))
            if not config.is_one_process:
                session.start()
                console.awaits("Ray")
        ray = _runtime(session, config, folder) if session else None
        health = lambda: session.problem if session else None  # noqa: E731
        offers = session.offers if isinstance(session, Cluster) else tuple
        first = first_incarnation(checkpoint)
        orchestrator = build(
            config, spec, folder, progress, console, ray=ray, incarnation=first, health=health, offers=offers
        )
        console.awaits("the trainer and the dataset" if config.is_offline else "the trainer and the workers")
        if isinstance(session, RaySession):
            session.start()  # mode=single starts Ray only now, because an earlier start would slow down `build`
        if checkpoint is not None:
            restore(checkpoint, config, orchestrator)
        signals.soft, signals.toggle = orchestrator.interrupt, orchestrator.toggle_pause
        signals.is_updating = lambda: orchestrator.learning.training > 0
        orchestrator.run()
        orchestrator.finish()
        exit_code = signals.exit_code or _unevaluated(orchestrator, folder) or _unlearned(orchestrator, folder)
        signals.raises = False
    except BaseException as error:
        signals.raises = False
        exit_code = _on_error(error, config, orchestrator, session, signals, folder)
    console.measures(None)  # asks the workers, which are closed now
    if orchestrator is not None and progress.position == 0:  # later, a resume would not continue from these steps
        progress.env_steps = orchestrator.pool.running_steps(progress.finished)
    facts = {"trainer": orchestrator.trainer_facts} if orchestrator and orchestrator.trainer_facts else {}
    summary = write_end(folder, config, record, exit_code, _results(progress, orchestrator), **facts)
    _close(orchestrator, session, str(summary["status"]), exit_code)
    return summary


def _results(progress: Progress, orchestrator: Orchestrator | None) -> dict[str, Any]:
    """Return what the run has counted and measured, for summary.json."""
    if orchestrator is None:
        return progress.summary(0.0, 0) | {"worker_restart_s": None}
    pool = orchestrator.pool
    restarts = statistics.median(pool.restart_seconds) if pool.restart_seconds else None
    return progress.summary(pool.wait_seconds(now()), orchestrator.manage.skipped) | {"worker_restart_s": restarts}


def _runtime(session: Session, config: Config, folder: Path) -> RayRuntime:
    """Return the runtime that starts roles on Ray. The start of the first role waits until Ray is ready."""

    def ready() -> None:
        session.wait()
        if problem := session.lost():  # if Ray is lost, ray.put would end this process without a message
            raise RoleLost(problem)

    return RayRuntime(str(folder / "workers"), ready, session.is_up, [node.id for node in session.nodes], config.env.id)


def _on_error(
    error: BaseException,
    config: Config,
    orchestrator: Orchestrator | None,
    session: Session | None,
    signals: Signals,
    folder: Path,
) -> int:
    """Report the error, save a checkpoint if possible, and return the exit code."""
    signal_code = signals.exit_code
    if signals.has_raised:  # the error is Interrupted, or an error that Ray raised because of Interrupted
        return signal_code
    lost = session.lost() if session and isinstance(error, RoleLost) else None
    exit_code = _report_error(RoleLost(lost) if lost else error, folder)
    if orchestrator is not None and not (lost or isinstance(error, Diverged | NotSaved)):
        is_algorithms = exit_code == USER_CODE and not isinstance(error, EnvironmentFailed)
        try:
            signals.raises = True
            orchestrator.rescue(whole=not is_algorithms)  # a whole checkpoint would wait forever for the failed update
        except (Exception, Interrupted):
            log.info("nothing could be saved at the end", exc_info=True)
        finally:
            signals.raises = False
    return signal_code if signal_code and isinstance(error, RoleLost) else exit_code  # the signal ended the role, too


def _unevaluated(orchestrator: Orchestrator, folder: Path) -> int:
    """Return the exit code of a complete run: an error if manage was lost, or if no evaluation succeeded."""
    failure, lost = orchestrator.manage.failure, orchestrator.manage.lost
    if lost is not None:
        missing = "its last evaluations and records are missing; its weights and checkpoints are saved"
        return _report_error(RoleLost(f"{lost}; the run is complete, but {missing}"), folder)
    if failure is None or orchestrator.progress.best is not None:
        return DONE
    return _report_error(UserCodeFailed(f"all evaluations failed: {failure}"), folder)


def _unlearned(orchestrator: Orchestrator, folder: Path) -> int:
    """Return the exit code of a run whose training is complete: an error if no episode ended, so that no row came."""
    config, progress = orchestrator.config, orchestrator.progress
    is_complete = orchestrator.stop_reason == config.clock.key
    if not is_complete or not most_open_steps(config) or not config.num_updates or progress.opt_steps:
        return DONE
    steps = f"{progress.env_steps:,} steps of {config.num_workers * config.worker.envs} environments"
    text = f"no update was made: rows reach replay when their episode ends, and {steps} gave {progress.inserts:,} rows"
    return _report_error(RunError(f"{text}; say a larger total_env_steps, or a smaller worker.envs", USAGE), folder)


def _close(orchestrator: Orchestrator | None, session: Session | None, status: str, exit_code: int) -> None:
    if orchestrator is not None and not (session and session.lost()):
        orchestrator.close(status, starts_manage=exit_code != USER_CODE)
    if session is not None:
        session.close()
        if isinstance(session, RaySession) and session.is_stuck:
            atexit.register(session.leave, exit_code)


def _report_error(error: BaseException, folder: Path) -> int:
    try:
        with open(folder / "error.txt", "w", opener=regular) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as full:
        log.warning("error.txt could not be written: %s", full)
    if os.environ.get("DRL_DEBUG"):
        traceback.print_exception(error)
    text, exit_code = str(error), BUG
    if isinstance(error, RunError):
        exit_code = error.exit_code
    elif line := memory_problem(error):
        text, exit_code = line, RESOURCES
    else:
        text, exit_code = f"{type(error).__name__}: {error}", RESOURCES if isinstance(error, OSError) else BUG
    tell(f"error: {text}")
    if not isinstance(error, RunError) or (exit_code == USER_CODE and error.__cause__ is not None):
        tell(f"  traceback: {folder / 'error.txt'}; DRL_DEBUG=1 prints it")
    if isinstance(error, Diverged) and error.batch:
        path = folder / "diverged.safetensors"
        try:
            write_arrays(path, error.batch)
            tell(f"  its batch: {path}")
        except OSError as full:
            tell(f"  its batch could not be written to {path}: {full}")
    return exit_code
