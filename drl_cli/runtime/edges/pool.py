"""Pools: processes of one role that answer one call at a time, and are replaced if they die or hang."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from drl_cli.config.sections import Fetch
from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.edges.calls import LOOK_S, START_S
from drl_cli.runtime.interfaces import CollectRole, ReanalyzerRole, WorkerRole
from drl_cli.runtime.messages import InsertTransition, ReanalysisReport, Told
from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, Handle, Ref, get, wait
from drl_cli.types import Array, Columns, LoadParams
from drl_cli.utils.clock import Waiting, now

log = logging.getLogger(__name__)


class Timed(Protocol):
    """A header that has the duration of its call [s]."""

    @property
    def seconds(self) -> float: ...


Role = TypeVar("Role")
Header = TypeVar("Header", bound=Timed)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Member(Generic[Role, Header]):
    """A process of a role, or a proxy with several workers, and its state."""

    index: int
    handle: Handle[Role]
    incarnation: int
    waiting: Waiting
    share: int = 1  # number of workers: 1, or those of the proxy
    version: int = -1  # version of the member's parameters, or -1 without parameters
    header: Ref[Header] | None = None  # reference to the header of the last call
    answer: Header | None = None  # the last header that has arrived
    loaded: bool = False  # whether the last call included new parameters
    issued: float = 0.0  # time of the last call [s]
    calls: int = 0  # number of calls to this incarnation
    causes: list[str] = field(default_factory=list)  # why the member died or hung, each time
    lost_at: float | None = None  # time of the last death [s], or None once the member has answered
    hung: bool = False  # whether the pool killed the member because it hung


class Keys(NamedTuple):
    """The keys that messages name: the limits on the restarts and on the time of a call, and what a member returns."""

    max_restarts: str
    timeout: str
    result: str


class Pool(Generic[Role, Header]):
    """Manages members with these indices.

    `spawn(index, incarnation)` starts a member. A member is busy from `call` until `answer`. A member that died is
    restarted up to `max_restarts` times. If the member's node is lost, all members with the same `node_of(index)` are
    removed. A member counts as hung if a call takes `timeout_s` longer than the slowest call so far. `restart_seconds`
    has the time from each death to the next answer of the member. `incarnation` is above all incarnations of removed
    members.
    """

    unit = "worker"
    keys: Keys

    def __init__(
        self,
        name: str,
        indices: Iterable[int],
        spawn: Callable[[int, int], Handle[Role]],
        max_restarts: int,
        *,
        timeout_s: float = 60.0,
        incarnation: int = 0,
        node_of: Callable[[int], str | None] = lambda index: None,
    ) -> None:
        self.name, self.spawn, self.max_restarts = name, spawn, max_restarts
        self.timeout_s, self.incarnation, self.node_of = timeout_s, incarnation, node_of
        self.waiting: list[Waiting] = []  # includes removed members
        self.members: list[Member[Role, Header]] = []
        for index in indices:
            self.join(index)
        self.busy: dict[Ref[Any], Member[Role, Header]] = {}
        self.restarts = 0
        self.restart_seconds: list[float] = []
        self.slowest = 0.0
        self.notes: list[str] = []

    @property
    def num_workers(self) -> int:
        """The number of processes; a proxy counts as its workers."""
        return sum(member.share for member in self.members)

    def join(self, index: int, share: int = 1) -> None:
        """Start a member with `share` workers. `index` must be free."""
        member: Member[Role, Header] = Member(
            index, self.spawn(index, self.incarnation), self.incarnation, Waiting(), share
        )
        self.waiting.append(member.waiting)
        self.members.append(member)

    def idle(self) -> list[Member[Role, Header]]:
        busy = {member.index for member in self.busy.values()}
        return [member for member in self.members if member.index not in busy]

    def call(
        self,
        member: Member[Role, Header],
        method: Callable[Concatenate[Role, P], tuple[Header, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Ref[T]:
        """Call a method that answers with a header and a value. Return a reference to the value.

        The member is busy until the value is ready, not the header. The value is then on this node before the next role
        asks for it, and a node that is lost during the transfer does not block that role.
        """
        member.issued = now()
        member.waiting.stop(member.issued)
        member.header, value = member.handle.ask_parts(2, method, *args, **kwargs)
        member.calls += 1
        self.busy[value] = member
        return value

    def answer(self, ref: Ref[Any]) -> tuple[Member[Role, Header], Header | None, int]:
        """Return the member whose call has ended, the header of its answer, and how many times it was restarted now.

        The header is None if the member did not answer. A member that died is restarted.
        """
        member = self.busy.pop(ref)
        if member in self.members:  # not removed with its node
            member.waiting.start(now())
        assert member.header is not None
        try:
            header = get(member.header)
        except ActorUnavailable as error:
            log.info("%s %d is out of reach: %s", self.name, member.index, error)
            member.version = -1
            return member, None, 0
        except ActorDied as error:
            return member, None, self._replace(member, error) if member in self.members else 0
        member.answer, self.slowest = header, max(self.slowest, header.seconds)
        if member.lost_at is not None:
            self.restart_seconds.append(now() - member.lost_at)
            self._note(f"{self._history(member)} in {self.restart_seconds[-1]:.1f} s")
            member.lost_at = None
        return member, header, 0

    def kill_overdue(self, moment: float) -> None:
        """Kill the members that hang, so that `answer` restarts them. Call this only when no answer is ready."""
        for member in self.busy.values():
            limit_s = self.slowest + self.timeout_s + (START_S if member.calls == 1 else 0.0)
            if not member.hung and moment >= member.issued + limit_s:
                member.hung = True
                self._lose(
                    member,
                    f"hung: no {self.keys.result} for {moment - member.issued:.3g} s ({self.keys.timeout})",
                    now(),
                )
                member.handle.kill()

    def take_notes(self) -> list[str]:
        """Return the new warnings about lost members. A proxy sends these warnings to the orchestrator."""
        notes, self.notes = self.notes, []
        return notes

    def wait_seconds(self, moment: float) -> float:
        return sum(waiting.seconds(moment) for waiting in self.waiting)

    def end(self, moment: float) -> None:
        """End the measured waiting time of all members. Blocks may still arrive later."""
        for waiting in self.waiting:
            waiting.end(moment)

    def _replace(self, member: Member[Role, Header], error: Exception) -> int:
        """Restart a member and return 1. If the member's node is gone, remove the members there and return 0."""
        moment = now()
        try:
            handle = self.spawn(member.index, member.incarnation + 1)
        except NodeGone as gone:
            self._remove(member, gone)
            return 0
        if not member.hung:
            self._lose(member, f"died ({error})", moment)
        self.restarts += 1
        if len(member.causes) > self.max_restarts:
            raise RoleLost(
                f"{self.name} {member.index} {member.causes[-1]}; {self.max_restarts} restarts are used up "
                f"({self.keys.max_restarts}); the first time it {member.causes[0]}"
            ) from error
        member.incarnation += 1
        member.version, member.calls, member.hung = -1, 0, False
        member.handle = handle
        return 1

    def _lose(self, member: Member[Role, Header], cause: str, moment: float) -> None:
        if member.lost_at is not None:
            self._note(f"{self._history(member)}, and lost again before its first {self.keys.result}")
        member.lost_at = moment
        member.causes.append(cause)
        log.info("%s %d %s", self.name, member.index, cause)

    def _note(self, text: str) -> None:
        log.warning(text)
        self.notes.append(text)

    def _history(self, member: Member[Role, Header]) -> str:
        count = f"{len(member.causes)}/{self.max_restarts}"
        return f"{self.name} {member.index} {member.causes[-1]}, restarted {count}"

    def _remove(self, member: Member[Role, Header], gone: NodeGone) -> None:
        total, node = self.num_workers, self.node_of(member.index)
        for other in list(self.members):
            if other is member or (node is not None and self.node_of(other.index) == node):
                self.members.remove(other)
                other.waiting.stop(now())
                self.incarnation = max(self.incarnation, other.incarnation + 1)
        if not self.members:
            raise RoleLost(f"{gone}, and with it the last {self.unit}") from gone
        log.warning("%s: going on with %d of %d %ss", gone, self.num_workers, total, self.unit)


WorkerMember: TypeAlias = Member[CollectRole, InsertTransition]
"""A worker or a proxy, and its state."""
ReanalyzerMember: TypeAlias = Member[ReanalyzerRole, ReanalysisReport]
"""A re-analyser and its state."""


def worker_of(member: WorkerMember) -> Handle[WorkerRole]:
    """Return the handle of a member which is a worker, not a proxy."""
    return cast("Handle[WorkerRole]", member.handle)


class ReanalyzerPool(Pool[ReanalyzerRole, ReanalysisReport]):
    """The re-analysers."""

    unit = "re-analyser"
    keys = Keys("reanalyzer.max_restarts", "orchestrator.stall_s", "answer")


Collected: TypeAlias = tuple[WorkerMember, InsertTransition | None, int, Ref[Columns]]
"""The answer to a collect call: the result of `Pool.answer`, and a reference to the columns."""


class WorkerPool(Pool[CollectRole, InsertTransition]):
    """The workers, or the proxies. More members may `join`, also proxies.

    `fetch` sets when a member receives newer parameters: with each call ("collect"), with every n-th call (n), or with
    the first call after the end of an episode ("episode").
    """

    keys = Keys("worker.max_restarts", "worker.step_timeout_s", "block")

    fetch: Fetch = "collect"

    def dispatch(self, member: WorkerMember, params_header: LoadParams, params: Ref[Array] | None) -> Ref[Columns]:
        """Send a collect call, with the parameters if they are newer and due. Return a reference to the columns."""
        if self.fetch == "collect" or member.version < 0:
            is_due = True
        else:
            has_ended = member.answer is not None and bool(member.answer.episodes)
            is_due = has_ended if self.fetch == "episode" else member.calls % self.fetch == 0
        member.loaded = is_due and params_header.version > member.version
        args = (cast(Array, params),) if member.loaded else ()
        member.version = params_header.version if member.loaded else member.version
        return self.call(member, CollectRole.collect, params_header, *args)

    def gather(self, window_s: float | None) -> list[Collected]:
        """Wait for answers until `window_s` after the first one (None: until all are there). Return them by member."""
        results: list[Collected] = []
        window_ends = float("inf")
        while self.busy and (moment := now()) <= window_ends:
            timeout_s = max(0.0, min(window_ends - moment, LOOK_S))
            results += [(*self.answer(ref), ref) for ref in wait(list(self.busy), timeout_s)]
            self.kill_overdue(now())
            if results and window_s is not None:
                window_ends = min(window_ends, now() + window_s)
        return sorted(results, key=lambda result: result[0].index)

    def told_steps(self) -> list[Told]:
        """Return the steps that each worker has reported so far. Another thread may call this."""
        return [Told(*told) for member in list(self.members) for told in member.handle.told().steps]

    def running_steps(self, finished: Mapping[int, int]) -> int:
        """Return the steps of all running collect calls. Ignore what a worker reported before its last block.

        `finished` has the steps of each worker in the blocks that have arrived.
        """
        told = self.told_steps()
        return sum(each.running for each in told if each.finished == finished.get(each.worker, each.finished))
