"""ManageLink: the orchestrator's connection to manage. Training survives the failures of manage."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from drl_cli.run_folder.checkpoint_writer import Draft
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.interfaces import ManageRole, ServerRole, WriterRole
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.place.handles import ActorDied, Handle, ObjectLost, Ref, get, wait
from drl_cli.types import Array, LoadParams, State
from drl_cli.utils.clock import now

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_Version: TypeAlias = tuple[LoadParams | Ref[LoadParams], Ref[Array]]


class ManageLink:
    """Sends reports, evaluations and checkpoints to manage, and calls `on_evaluation` after each evaluation.

    A manage that dies, or does not answer a call for `stall_s`, is restarted up to `max_restarts` times. Then `lost` is
    what happened to the last manage, and the run goes on without evaluations and records. Checkpoints do not depend on
    manage: `writer`, a role in this process, writes them after that, and until manage has answered its first call.

    One evaluation runs at a time. Of the versions that wait for an evaluation, only the newest is kept. `spawn(wait)`
    starts manage and returns a handle. In mode=single, Ray may still be starting: `spawn(False)` then returns None, and
    `spawn(True)` blocks. If manage died, the next manage repeats the evaluation. If the parameters of an evaluation
    were lost, manage evaluates the newest version from the parameter server `server` instead. If `evaluates` is False,
    there are no evaluations.
    """

    def __init__(
        self,
        spawn: Callable[[bool], Handle[ManageRole] | None],
        server: Handle[ServerRole],
        writer: Handle[WriterRole],
        max_restarts: int,
        on_evaluation: Callable[[EvalReport], None],
        stall_s: float = math.inf,
        evaluates: bool = True,
    ) -> None:
        self.spawn, self.server, self.writer = spawn, server, writer
        self.max_restarts, self.stall_s = max_restarts, stall_s
        self.on_evaluation, self.evaluates = on_evaluation, evaluates
        self.handle: Handle[ManageRole] | None = None
        self.evaluated = -1
        self.failure: str | None = None  # why the last evaluation failed
        self.skipped = 0
        self.restarts = 0
        self.lost: str | None = None
        self.has_answered = False  # whether this manage has answered a call
        self.evaluating: Ref[EvalReport] | None = None
        self._late_at, self._is_late = math.inf, False  # the evaluation is late after this time [s]; whether it is late
        self._running: _Version | None = None
        self._next: _Version | None = None
        self.pending: dict[Ref[Any], tuple[Callable[[Any], object], float]] = {}  # with the time [s] of the call
        self._pinged: Ref[int] | None = None
        self._unsent: list[tuple[Callable[[Handle[ManageRole]], Ref[Any]], Callable[[Any], object]]] = []
        self._problem = ""  # the last of these
        self._problems: set[str] = set()

    def report(self, scalars: Mapping[str, float], position: int) -> None:
        self._send(_log_problems, ManageRole.report, scalars, position)

    def commit(
        self,
        draft: Draft,
        params: Ref[Array],
        states: Sequence[Ref[State]],
        on_done: Callable[[str | Exception | None], None],
    ) -> None:
        self._write(on_done, WriterRole.commit, draft, cast(Array, params), *cast(Sequence[State], states))

    def save(
        self,
        params_header: LoadParams,
        params: Ref[Array],
        on_done: Callable[[str | Exception | None], None] | None = None,
    ) -> None:
        """Save the model of this version or, if `params` were lost, the parameter server's newest version.

        `on_done` gets the folder, an error, or None after manage died. The default logs the error.
        """
        take = on_done or self._on_saved

        def on_answer(answer: str | Exception | None) -> None:
            if isinstance(answer, ObjectLost):
                header, newest = self._pull()
                self._write(take, WriterRole.save, cast(LoadParams, header), cast(Array, newest))
            else:
                take(answer)

        self._write(on_answer, WriterRole.save, params_header, cast(Array, params))

    def _on_saved(self, saved: str | Exception | None) -> None:
        if isinstance(saved, Exception):
            self._warn(f"{type(saved).__name__}: {saved}")

    def evaluate(self, params_header: LoadParams, params: Ref[Array]) -> None:
        """Evaluate this version after the running evaluation. An older version that still waits is skipped."""
        self.drop_next()
        self._next = (params_header, params)
        self.poll()

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation runs or waits. False if the running evaluation takes longer than `stall_s`."""
        return self.lost is None and not self._is_late and (self.evaluating is not None or self._next is not None)

    def drop_next(self) -> None:
        if self._next is not None:
            self._next, self.skipped = None, self.skipped + 1

    def poll(self) -> None:
        """Handle the answers that are ready. If no evaluation is running, start the waiting evaluation."""
        if self.handle is None:
            self._start()
        if self.handle is None or self.lost is not None:
            return
        for ref in wait(list(self.pending), 0) if self.pending else []:
            if ref in self.pending:  # false if manage has died: `_take` then drops all pending calls
                react, _ = self.pending.pop(ref)
                react(self._take(ref))
        sent = [at for ref, (_, at) in self.pending.items() if ref is not self.evaluating]  # that may take any time
        if sent and now() > min(sent) + self.stall_s + (0.0 if self.has_answered else START_S) and self.handle:
            self.handle.kill()
            self._replace(f"does not answer for {self.stall_s:g} s")
        if self.evaluating is not None and now() > self._late_at and not self._is_late:
            self._is_late = True
            log.warning("an evaluation takes longer than %g s; training goes on", self.stall_s)
        if self.evaluating is None and self._next is not None and self.handle is not None:
            self._running, self._next = self._next, None
            self._late_at = now() + self.stall_s
            params_header, params = self._running
            args = cast(LoadParams, params_header), cast(Array, params)
            self.evaluating = self.handle.ask(ManageRole.evaluate, *args)
            self.pending[self.evaluating] = self._on_evaluated, now()

    def _on_evaluated(self, report: EvalReport | ObjectLost | None) -> None:
        running, self._running = self._running, None
        self.evaluating, self._is_late = None, False
        if report is None and running is not None:  # manage lives; after its death, no evaluation is running
            self.failure = self._problem
        if isinstance(report, EvalReport):
            self.evaluated = report.params_header.version
            if report.problem:
                self._warn(report.problem)
            self.on_evaluation(report)
        elif isinstance(report, ObjectLost) and running is not None:
            if isinstance(running[0], LoadParams):
                self._next = self._next or self._pull()
            else:  # the lost parameters came from the parameter server
                self._warn(str(report))

    def finish(
        self, params_header: LoadParams, params: Ref[Array], timeout_s: float, is_over: Callable[[], bool]
    ) -> None:
        """Evaluate the last version if necessary. Wait for all answers, or until `is_over()` is true."""
        self.drop_next()
        is_free = self._wait(timeout_s, is_over)
        if is_free and self.evaluates and self.evaluated != params_header.version:
            self._next = (params_header, params)
            self._wait(timeout_s, is_over)

    def close(self, status: str, timeout_s: float, starts: bool = True) -> None:
        """Have manage write its last records. Do not wait for a running evaluation.

        If manage has not started yet, wait for its start, or return at once if `starts` is False.
        """
        if self.evaluating is not None:
            del self.pending[self.evaluating]
        self.evaluating = None
        if self.lost is not None:
            self.writer.ask(WriterRole.close, status)
        elif self.handle is not None or starts:
            self._send(_log_problems, ManageRole.close, status)
            self._wait(timeout_s)

    def _wait(self, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no call is in flight, or `is_over()` is true, or no answer arrives for `timeout_s`.

        Return whether no call is in flight. Pings show whether manage lives while only an evaluation is in flight.
        """
        heard = now()
        while self.lost is None and not is_over():
            self.poll()
            in_flight = [ref for ref in self.pending if ref is not self._pinged]
            if not in_flight and self._next is None and self.handle is not None:
                return True
            if self.handle is None:
                self._start(waits=True)
            elif not in_flight or wait(in_flight, min(1.0, timeout_s)):
                heard = now()
            elif now() - heard > timeout_s:
                log.warning("manage does not answer for %.0f s; its last results are missing", timeout_s)
                self.evaluating, self.pending = None, {}
                return False
            elif self._pinged is None:
                self._pinged = self.handle.ping()
                self.pending[self._pinged] = self._on_ping, now()
        return False

    def _start(self, waits: bool = False) -> None:
        """Start manage if Ray has started, or wait for Ray. Then send the calls that waited for the start."""
        self.handle = self.spawn(waits)
        if self.handle is not None:
            unsent, self._unsent = self._unsent, []
            for send, on_done in unsent:
                self.pending[send(self.handle)] = on_done, now()

    def _send(
        self,
        on_done: Callable[[T | ObjectLost | None], None],
        method: Callable[Concatenate[ManageRole, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of manage, at once or when manage has started. `on_done` gets what `_take` returns."""
        if self.lost is not None:
            on_done(None)
        elif self.handle is not None:
            self.pending[self.handle.ask(method, *args, **kwargs)] = on_done, now()
        else:
            self._unsent.append((lambda handle: handle.ask(method, *args, **kwargs), on_done))
            self._start()

    def _write(
        self,
        on_done: Callable[[T | ObjectLost | None], None],
        method: Callable[Concatenate[WriterRole, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of manage or, before its first answer and after it was given up, of the writer in this process.

        An evaluation of manage may save a model, too, so that only manage writes while an evaluation is in flight.
        """
        if self.has_answered or self.evaluating is not None:
            self._send(on_done, method, *args, **kwargs)
        else:
            on_done(self._take(self.writer.ask(method, *args, **kwargs), is_manages=False))

    def _on_ping(self, _: object) -> None:
        self._pinged = None

    def _pull(self) -> tuple[Ref[LoadParams], Ref[Array]]:
        return self.server.ask_parts(2, ServerRole.pull)

    def _take(self, ref: Ref[T], is_manages: bool = True) -> T | ObjectLost | None:
        """Return an answer, ObjectLost if an argument was lost, or None after another error, which gives a warning.

        Restart manage if it has died.
        """
        answer: T | ObjectLost | None = None
        try:
            answer = get(ref)
        except ObjectLost as error:
            answer = error
        except ActorDied as error:
            self._replace(f"died ({error})")
            return None
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
        self.has_answered |= is_manages
        return answer

    def _warn(self, problem: str) -> None:
        """Log a warning once for each cause. On a full disk, every report fails with the same cause."""
        self._problem = problem
        cause = problem.partition("]")[0]  # the number of an OSError, without its file
        if cause not in self._problems:
            log.warning("manage failed: %s", problem)
        self._problems.add(cause)

    def _replace(self, what: str) -> None:
        """Restart manage after its death or stall, or give it up."""
        dropped = [react for ref, (react, _) in self.pending.items() if ref not in (self.evaluating, self._pinged)]
        self.pending = {}
        self._next, self._running = self._next or self._running, None
        self.evaluating = self._pinged = None
        self.has_answered = False
        self.restarts += 1
        if self.restarts > self.max_restarts:
            self.lost = f"manage {what}; {self.max_restarts} restarts are used up (manage.max_restarts)"
            log.warning("%s; training goes on without evaluations and records, and saves checkpoints", self.lost)
        else:
            self.handle = self.spawn(False)
            log.warning("manage %s, restarted %d/%d", what, self.restarts, self.max_restarts)
        for react in dropped:
            react(None)


def _log_problems(problems: list[str] | ObjectLost | None) -> None:
    for problem in problems if isinstance(problems, list) else []:
        log.warning("%s", problem)
