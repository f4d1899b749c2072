"""WorkerPool: sends collect calls to workers, gathers their blocks, and replaces workers that die or hang."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.interfaces import CollectRole, WorkerRole
from drl_cli.runtime.messages import InsertTransition, LoadParams, Told
from drl_cli.runtime.place.ask import as_value, ask_parts
from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, Handle, Ref, get, wait
from drl_cli.runtime.sections import Fetch
from drl_cli.types import Array, Columns
from drl_cli.utils.clock import Waiting, now

log = logging.getLogger(__name__)


@dataclass
class Member:
    """A worker or a proxy, and its state."""

    index: int
    handle: Handle[CollectRole]
    incarnation: int
    waiting: Waiting
    share: int = 1  # number of workers: 1, or those of the proxy
    version: int = -1  # version of the member's parameters, or -1 without parameters
    header: Ref[InsertTransition] | None = None  # reference to the header of the last collect call
    loaded: bool = False  # whether the last collect call included parameters
    issued: float = 0.0  # time of the last collect call [s]
    collects: int = 0  # number of collect calls to this incarnation
    ended: bool = False  # whether an episode ended in the last block
    causes: list[str] = field(default_factory=list)  # why the member died or hung, each time
    lost_at: float | None = None  # time of the last death [s], or None once the member has returned a block
    hung: bool = False  # whether the pool killed the member because it hung

    @property
    def is_back(self) -> bool:
        return self.version < 0 and bool(self.causes)


def worker_of(member: Member) -> Handle[WorkerRole]:
    """Return the handle of a member which is a worker, not a proxy."""
    return cast("Handle[WorkerRole]", member.handle)


@dataclass(frozen=True)
class Collected:
    """The answer of one member: a header and a reference to the columns. Both are None if the member did not answer."""

    member: int
    share: int
    header: InsertTransition | None
    columns: Ref[Columns] | None
    loaded: bool = False  # whether the call included parameters
    restarts: int = 0  # 1 if the member was restarted, else 0


class WorkerPool:
    """Manages members with these indices: workers, or proxies.

    `spawn(index, incarnation)` starts a member. More members may `join`, also proxies with several workers. A member is
    busy from `dispatch` until `finish`. `fetch` sets when a member receives newer parameters: with each call
    ("collect"), with every n-th call (n), or with the first call after the end of an episode ("episode"). A member that
    died is restarted up to `max_restarts` times. If the member's node is lost, all members with the same
    `node_of(index)` are removed. A member counts as hung if a call takes `timeout_s` longer than the slowest call so
    far. `restart_seconds` has the time from each death to the next block of the member. `incarnation` is above all
    incarnations of removed members.
    """

    def __init__(
        self,
        name: str,
        indices: Iterable[int],
        spawn: Callable[[int, int], Handle[CollectRole]],
        max_restarts: int,
        *,
        fetch: Fetch = "collect",
        timeout_s: float = 60.0,
        incarnation: int = 0,
        node_of: Callable[[int], str | None] = lambda index: None,
    ) -> None:
        self.name, self.spawn, self.max_restarts = name, spawn, max_restarts
        self.fetch, self.timeout_s, self.incarnation, self.node_of = fetch, timeout_s, incarnation, node_of
        self.waiting: list[Waiting] = []  # includes removed members
        self.members: list[Member] = []
        for index in indices:
            self.join(index)
        self.busy: dict[Ref[Columns], Member] = {}
        self.restarts = 0
        self.restart_seconds: list[float] = []
        self.slowest = 0.0
        self.finished: dict[int, int] = {}  # steps of each worker in the blocks that have arrived
        self.notes: list[str] = []

    @property
    def num_workers(self) -> int:
        return sum(member.share for member in self.members)

    def join(self, index: int, share: int = 1) -> None:
        """Start a member with `share` workers. `index` must be free."""
        member = Member(index, self.spawn(index, self.incarnation), self.incarnation, Waiting(), share)
        self.waiting.append(member.waiting)
        self.members.append(member)

    def idle(self) -> list[Member]:
        busy = {member.index for member in self.busy.values()}
        return [member for member in self.members if member.index not in busy]

    def fetches(self, member: Member, params_header: LoadParams) -> bool:
        """Return whether the member's next collect call will include the parameters of this version."""
        if self.fetch == "collect" or member.version < 0:
            is_due = True
        else:
            is_due = member.ended if self.fetch == "episode" else member.collects % self.fetch == 0
        return is_due and params_header.version > member.version

    def dispatch(self, member: Member, params_header: LoadParams, params: Ref[Array] | None) -> Ref[Columns]:
        """Send a collect call, with the parameters if `fetches` returns True. Return a reference to the columns.

        The pool waits for the columns, not for the header. The columns are then on this node before replay asks for
        them, and a node that is lost during the transfer does not block replay.
        """
        member.loaded = self.fetches(member, params_header)
        member.issued = now()  # before the call, because a local worker collects during the call
        member.waiting.stop(member.issued)
        args = (as_value(params),) if member.loaded else ()
        member.header, columns = ask_parts(member.handle, 2, CollectRole.collect, params_header, *args)
        member.version = params_header.version if member.loaded else member.version
        member.collects += 1
        self.busy[columns] = member
        return columns

    def finish(self, ref: Ref[Columns]) -> Collected:
        """Return the answer to a collect call that has ended. Restart the member if it died."""
        member = self.busy.pop(ref)
        if member in self.members:  # not removed with its node
            member.waiting.start(now())
        assert member.header is not None
        try:
            header = get(member.header)
        except ActorUnavailable as error:
            log.info("%s %d is out of reach: %s", self.name, member.index, error)
            member.version = -1
            return Collected(member.index, member.share, None, None)
        except ActorDied as error:
            restarts = self._replace(member, error) if member in self.members else 0
            return Collected(member.index, member.share, None, None, restarts=restarts)
        member.ended = bool(header.episodes)
        self.slowest = max(self.slowest, header.collect_s)
        self.finished |= {block.worker: block.last_env_step for block in header.blocks}
        if member.lost_at is not None:
            self.restart_seconds.append(now() - member.lost_at)
            self._note(f"{self._history(member)} in {self.restart_seconds[-1]:.1f} s")
            member.lost_at = None
        return Collected(member.index, member.share, header, ref, member.loaded)

    def gather(self, window_s: float | None) -> list[Collected]:
        """Wait for answers until `window_s` after the first one (None: until all are there). Return them by member."""
        results: list[Collected] = []
        window_ends = float("inf")
        while self.busy and (moment := now()) <= window_ends:
            timeout = min(window_ends, self.next_deadline(), moment + 3600.0) - moment
            results += [self.finish(ref) for ref in wait(list(self.busy), max(0.0, timeout))]
            self.kill_overdue(now())
            if results and window_s is not None:
                window_ends = min(window_ends, now() + window_s)
        return sorted(results, key=lambda result: result.member)

    def next_deadline(self) -> float:
        """Return the time [s] at which the first busy member will count as hung, or infinity if no member is busy."""
        return min((self._deadline(member) for member in self.busy.values()), default=float("inf"))

    def kill_overdue(self, moment: float) -> None:
        """Kill the members that hang, so that `finish` restarts them. Call this only when no answer is ready."""
        for member in self.busy.values():
            if moment >= self._deadline(member):
                member.hung = True
                self._lose(member, f"hung: no block for {moment - member.issued:.3g} s (worker.step_timeout_s)", now())
                member.handle.kill()

    def take_notes(self) -> list[str]:
        """Return the new warnings about lost members. A proxy sends these warnings to the orchestrator."""
        notes, self.notes = self.notes, []
        return notes

    def told_steps(self) -> list[Told]:
        """Return the steps that each worker has reported so far. Another thread may call this."""
        return [Told(*told) for member in list(self.members) for told in member.handle.told_steps()]

    def running_steps(self) -> int:
        """Return the steps of all running collect calls. Ignore what a worker reported before its last block."""
        told = self.told_steps()
        return sum(each.running for each in told if each.finished == self.finished.get(each.worker, each.finished))

    def wait_seconds(self, moment: float) -> float:
        return sum(waiting.seconds(moment) for waiting in self.waiting)

    def end(self, moment: float) -> None:
        """End the measured waiting time of all members. Blocks may still arrive later."""
        for waiting in self.waiting:
            waiting.end(moment)

    def _deadline(self, member: Member) -> float:
        if member.hung:
            return float("inf")
        return member.issued + self.slowest + self.timeout_s + (START_S if member.collects == 1 else 0.0)

    def _replace(self, member: Member, error: Exception) -> int:
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
                f"(worker.max_restarts); the first time it {member.causes[0]}"
            ) from error
        member.incarnation += 1
        member.version, member.collects, member.hung = -1, 0, False
        member.handle = handle
        return 1

    def _lose(self, member: Member, cause: str, moment: float) -> None:
        if member.lost_at is not None:
            self._note(f"{self._history(member)}, and lost again before its first block")
        member.lost_at = moment
        member.causes.append(cause)
        log.info("%s %d %s", self.name, member.index, cause)

    def _note(self, text: str) -> None:
        log.warning(text)
        self.notes.append(text)

    def _history(self, member: Member) -> str:
        count = f"{len(member.causes)}/{self.max_restarts}"
        return f"{self.name} {member.index} {member.causes[-1]}, restarted {count}"

    def _remove(self, member: Member, gone: NodeGone) -> None:
        total, node = self.num_workers, self.node_of(member.index)
        for other in list(self.members):
            if other is member or (node is not None and self.node_of(other.index) == node):
                self.members.remove(other)
                other.waiting.stop(now())
                self.incarnation = max(self.incarnation, other.incarnation + 1)
        if not self.members:
            raise RoleLost(f"{gone}, and with it the last worker") from gone
        log.warning("%s: going on with %d of %d workers", gone, self.num_workers, total)
