"""ManageLink: the orchestrator's edge to manage. Training never waits for manage, and no failure of manage stops it."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drl_cli.runtime.messages import EvalReport, LoadParams, ProcessUse
from drl_cli.runtime.place.handles import ActorDied, Handle, ObjectLost, Ref, get, wait
from drl_cli.utils.clock import now

log = logging.getLogger(__name__)


class ManageLink:
    """Sends reports and evaluations; at most one evaluation runs, and only the newest version waits for it.

    `spawn(wait)` gives a handle, or None while manage can't be started yet (mode=single trains while Ray starts);
    with `wait` it blocks until it can. A manage that was restarted evaluates the newest version that the parameter
    `server` has, and so does one whose version is gone with the process or node that had its parameters.
    """

    def __init__(
        self, spawn: Callable[[bool], Handle | None], server: Handle, max_restarts: int, stall_s: float = math.inf
    ) -> None:
        self.spawn, self.server, self.max_restarts, self.stall_s = spawn, server, max_restarts, stall_s
        self.handle: Handle | None = None
        self.evaluated = -1
        self.skipped = 0
        self.restarts = 0
        self.gave_up = False
        self.evaluating: Ref = None
        self._until = math.inf  # when an evaluation has taken so long that it is said
        self._running: tuple[LoadParams | Ref, Ref] | None = None
        self._next: tuple[LoadParams | Ref, Ref] | None = None
        self._reports: dict[Ref, Callable[[Any], None]] = {}
        self._unsent: list[tuple[str, tuple[Any, ...], Callable[[Any], None]]] = []
        self._problem = ""
        self.on_evaluation: Callable[[EvalReport], None] = lambda report: None

    def report(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Record these scalars."""
        self._send("report", scalars, env_steps, on_done=_say)

    def used(self, tell: Callable[[Sequence[ProcessUse]], None]) -> None:
        """Have `tell` called with what manage's process has used."""
        self._send("used", on_done=lambda uses: tell(uses or ()))

    def commit(self, parts: Sequence[Any], on_done: Callable[[str | Exception | None], None]) -> None:
        """Make a checkpoint of these parts (Manage.commit); `on_done` gets its answer, None when manage died."""
        self._send("commit", *parts, on_done=on_done)

    def save(self, params_header: LoadParams, params: Ref) -> None:
        """Save this version's model alone, or where its parameters are gone, the newest that the server has."""

        def on_done(answer: str | ObjectLost | None) -> None:
            if isinstance(answer, ObjectLost):
                self._send("save", *self._pull())

        self._send("save", params_header, params, on_done=on_done)

    def evaluate(self, params_header: LoadParams, params: Ref) -> None:
        """Evaluate this version as soon as the running evaluation is done; an older one that waits is skipped."""
        if self._next is not None:
            self.skipped += 1
        self._next = (params_header, params)
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
                self.evaluated = report.params_header.version
                if report.problem:
                    self._warn(report.problem)
                self.on_evaluation(report)
            elif isinstance(report, ObjectLost) and self._running is not None:
                if isinstance(self._running[0], LoadParams):
                    self._next = self._next or self._pull()
                else:  # what the server gave is gone, too
                    self._warn(str(report))
        if self.evaluating is not None and now() > self._until:
            self._until = math.inf
            log.warning("an evaluation takes longer than %g s; training goes on", self.stall_s)
        if self.evaluating is None and self._next is not None and self.handle is not None:
            self._running, self._next = self._next, None
            self._until = now() + self.stall_s
            self.evaluating = self.handle.call("evaluate", *self._running)

    def finish(self, params_header: LoadParams, params: Ref, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Evaluate the last version unless that was done, and wait for all that is under way, until `is_over()`."""
        self.drop_next()
        self._wait(timeout_s, is_over)
        if self.evaluated != params_header.version and not is_over():
            self._next = (params_header, params)
            self._wait(timeout_s, is_over)

    def drop_next(self) -> None:
        """Skip the evaluation that waits."""
        if self._next is not None:
            self._next, self.skipped = None, self.skipped + 1

    def close(self, status: str, timeout_s: float) -> None:
        """Let manage write what is left; a running evaluation is not waited for."""
        self.evaluating = None
        self._send("close", status, on_done=_say)
        self._wait(timeout_s)

    def under_way(self) -> list[Ref]:
        """References to the answers that manage still owes."""
        return [ref for ref in (self.evaluating, *self._reports) if ref is not None]

    def _wait(self, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until nothing is under way or `is_over()`; gives up, with a warning, after `timeout_s` of silence."""
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

    def _pull(self) -> tuple[Ref, Ref]:
        """The newest version that the server has: references to its header and its parameters."""
        params_header, params = self.server.call("pull", results=2)
        return params_header, params

    def _take(self, ref: Ref) -> Any:
        """The result, or ObjectLost where manage was called with something that is gone.

        Another failure is reported once, and a dead manage is replaced.
        """
        try:
            return get(ref)
        except ObjectLost as error:
            return error
        except ActorDied as error:
            self._replace(error)
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
        return None

    def _warn(self, problem: str) -> None:
        """Warn, but not of the same problem twice in a row: a full disk fails every report in the same way."""
        if problem != self._problem:
            log.warning("manage failed: %s", problem)
        self._problem = problem

    def _replace(self, error: ActorDied) -> None:
        waiting, self._reports = self._reports, {}
        self.evaluating = None
        if self._next is not None or self._running is not None:
            self._next, self._running = self._pull(), None
        self.restarts += 1
        if self.restarts > self.max_restarts:
            self.gave_up = True
            log.warning("manage died again (%s); training goes on without evaluations and checkpoints", error)
        else:
            self.handle = self.spawn(False)
            log.warning("manage died (%s), restarted %d/%d", error, self.restarts, self.max_restarts)
        for react in waiting.values():
            react(None)


def _say(problems: list[str] | None) -> None:
    """Warn of what manage could not record; it says each problem once."""
    for problem in problems or []:
        log.warning("%s", problem)
