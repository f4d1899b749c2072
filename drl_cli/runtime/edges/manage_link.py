"""ManageLink: the orchestrator's edge to manage. Nothing here waits, and no failure of manage stops training."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.place.handles import ActorDied, Handle, Ref, get, wait
from drl_cli.utils.clock import now

log = logging.getLogger(__name__)


class ManageLink:
    """Sends reports and evaluations; at most one evaluation runs, and only the newest version waits for it.

    `spawn(wait)` gives a handle, or None while manage can't be started yet (mode=single trains while Ray starts);
    with `wait` it blocks until it can.
    """

    def __init__(self, spawn: Callable[[bool], Handle | None], max_restarts: int, stall_s: float = math.inf) -> None:
        self.spawn, self.max_restarts, self.stall_s = spawn, max_restarts, stall_s
        self.handle: Handle | None = None
        self.evaluated = -1
        self.skipped = 0
        self.restarts = 0
        self.gave_up = False
        self.evaluating: Ref = None
        self._until = math.inf  # when an evaluation has taken so long that it is said
        self._running: tuple[LoadParams, Ref] | None = None
        self._next: tuple[LoadParams, Ref] | None = None
        self._reports: dict[Ref, Callable[[Any], None]] = {}
        self._unsent: list[tuple[str, tuple[Any, ...], Callable[[Any], None]]] = []
        self._problem = ""
        self._on_evaluation: Callable[[EvalReport], None] = lambda report: None

    def on_evaluation(self, react: Callable[[EvalReport], None]) -> None:
        """Call this with every finished evaluation."""
        self._on_evaluation = react

    def report(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Record these scalars."""
        self._send("report", scalars, env_steps)

    def commit(self, parts: Sequence[Any], on_done: Callable[[str | OSError | None], None]) -> None:
        """Make a checkpoint of these parts (Manage.commit); `on_done` gets its answer, None when manage died."""
        self._send("commit", *parts, on_done=on_done)

    def save(self, load: LoadParams, params: Ref) -> None:
        """Save this version's model alone."""
        self._send("save", load, params)

    def evaluate(self, load: LoadParams, params: Ref) -> None:
        """Evaluate this version as soon as the running evaluation is done; an older one that waits is skipped."""
        if self._next is not None:
            self.skipped += 1
        self._next = (load, params)
        self.poll()

    def poll(self) -> None:
        """Take results that are there, and start what waits."""
        if not self._ready():
            return
        for ref in wait(list(self._reports), 0) if self._reports else []:
            if ref in self._reports:  # a dead manage drops them all
                react = self._reports.pop(ref)
                react(self._take(ref))
        if self.evaluating is not None and wait([self.evaluating], 0):
            ref, self.evaluating = self.evaluating, None
            report = self._take(ref)
            if isinstance(report, EvalReport):
                self._running = None
                self.evaluated = report.load.version
                if report.problem:
                    self._warn(report.problem)
                self._on_evaluation(report)
        if self.evaluating is not None and now() > self._until and self._running is not None:
            self._until = math.inf
            env_steps = self._running[0].env_steps
            log.warning("the evaluation of step %d takes longer than %g s; training goes on", env_steps, self.stall_s)
        if self.evaluating is None and self._next is not None and self.handle is not None:
            self._running, self._next = self._next, None
            self._until = now() + self.stall_s
            self.evaluating = self.handle.call("evaluate", *self._running)

    def finish(self, load: LoadParams, params: Ref, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Evaluate the last version, unless it has been; wait for all that is under way, as long as it is not over."""
        self.drop_next()
        self._wait(timeout_s, is_over)
        if self.evaluated != load.version and not is_over():
            self._next = (load, params)
            self._wait(timeout_s, is_over)

    def drop_next(self) -> None:
        """Skip the evaluation that waits."""
        if self._next is not None:
            self._next, self.skipped = None, self.skipped + 1

    def close(self, status: str, timeout_s: float) -> None:
        """Let manage write what is left; a running evaluation is not waited for."""
        self.evaluating = None
        self._send("close", status)
        self._wait(timeout_s)

    def under_way(self) -> list[Ref]:
        """Answers that are to come."""
        return [ref for ref in (self.evaluating, *self._reports) if ref is not None]

    def _wait(self, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is under way or it is over; gives up with a warning when nothing comes back for `timeout_s`."""
        heard = now()
        while not self.gave_up and not is_over():
            self.poll()
            under_way = self.under_way()
            if not under_way and self._next is None and self.handle is not None:
                return
            if self.handle is None:
                self.handle = self.spawn(True)
            elif not under_way or wait(under_way, min(1.0, timeout_s)):
                heard = now()
            elif now() - heard > timeout_s:
                log.warning("manage does not answer for %.0f s; its last results are missing", timeout_s)
                self.gave_up = True

    def _ready(self) -> bool:
        if self.gave_up:
            return False
        if self.handle is None:
            self.handle = self.spawn(False)
        if self.handle is not None and self._unsent:
            unsent, self._unsent = self._unsent, []
            for method, args, on_done in unsent:
                self._send(method, *args, on_done=on_done)
        return self.handle is not None

    def _send(self, method: str, *args: Any, on_done: Callable[[Any], None] = lambda answer: None) -> None:
        if self.gave_up:
            on_done(None)
            return
        if self.handle is None and not self._ready():
            self._unsent.append((method, args, on_done))
            return
        assert self.handle is not None
        self._reports[self.handle.call(method, *args)] = on_done

    def _take(self, ref: Ref) -> Any:
        """The result; a failure is reported once, and a dead manage is replaced."""
        try:
            return get(ref)
        except ActorDied as error:
            self._replace(error)
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
        return None

    def _warn(self, problem: str) -> None:
        """Once in a row: a full disk fails every report in the same way."""
        if problem != self._problem:
            log.warning("manage failed: %s", problem)
        self._problem = problem

    def _replace(self, error: ActorDied) -> None:
        waiting, self._reports = self._reports, {}
        self.evaluating = None
        self._next, self._running = self._next or self._running, None
        self.restarts += 1
        if self.restarts > self.max_restarts:
            self.gave_up = True
            log.warning("manage died again (%s); training goes on without evaluations and checkpoints", error)
        else:
            self.handle = self.spawn(False)
            log.warning("manage died (%s), restarted %d/%d", error, self.restarts, self.max_restarts)
        for react in waiting.values():
            react(None)
