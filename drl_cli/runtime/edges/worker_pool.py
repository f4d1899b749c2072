"""WorkerPool: sends `collect` to many workers, gathers what is done, replaces the dead and the hung."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.config import Fetch
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.messages import InsertTransition, LoadParams
from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, Handle, Ref, get, wait
from drl_cli.utils.clock import Waiting, now

log = logging.getLogger(__name__)


@dataclass
class Member:
    """One worker (or proxy) and what it is doing.

    `header` refers to the answer of its last collect, begun at `issued` [s]; `loaded` tells whether parameters went
    along with that call, `version` is that of the last parameters that did. `collects` counts the calls to this
    incarnation; an episode `ended` in the last that was finished. `causes` say why it was replaced, each time; `lost`
    is when the last loss was noticed [s], None once it has handed over again. One that `hung` has been killed.
    """

    index: int
    handle: Handle
    incarnation: int
    version: int = -1
    header: Ref | None = None
    loaded: bool = False
    collects: int = 0
    ended: bool = False
    issued: float = 0.0
    causes: list[str] = field(default_factory=list)
    lost: float | None = None
    hung: bool = False

    @property
    def is_back(self) -> bool:
        """It was replaced, and has no parameters yet."""
        return self.version < 0 and bool(self.causes)


@dataclass(frozen=True)
class Collected:
    """What came back from one member: the header and a reference to the columns, both None when the member died.

    `loaded` tells whether parameters went along with the call, `restarts` how often the member was replaced for it.
    """

    member: int
    header: InsertTransition | None
    columns: Ref | None
    loaded: bool = False
    restarts: int = 0


class WorkerPool:
    """`num` members, the first of index `first`. `spawn(index, incarnation)` makes one, beginning with `incarnation`.

    A member is a worker, or a proxy that stands for `share` workers. It is busy from `dispatch` until its result is
    `finish`ed. `fetch` says when newer parameters go to a member: "collect" (with each), n (with every n-th), or
    "episode" (with the first collect after one in which an episode ended).

    A member that died is replaced, `max_restarts` times; one whose node is gone is not. A member hangs when a collect
    takes `timeout_s` longer than the slowest so far. `restart_seconds` are from noticing a loss to the next hand-over.
    """

    def __init__(
        self,
        name: str,
        num: int,
        spawn: Callable[[int, int], Handle],
        max_restarts: int,
        *,
        first: int = 0,
        fetch: Fetch = "collect",
        share: int = 1,
        timeout_s: float = 60.0,
        incarnation: int = 0,
    ) -> None:
        self.name, self.spawn, self.max_restarts = name, spawn, max_restarts
        self.fetch, self.share, self.timeout_s = fetch, share, timeout_s
        self.members = [Member(i, spawn(i, incarnation), incarnation) for i in range(first, first + num)]
        self.waiting = [Waiting() for _ in self.members]
        self.busy: dict[Ref, Member] = {}
        self.restarts = 0
        self.restart_seconds: list[float] = []
        self.slowest = 0.0
        self.notes: list[str] = []
        self._first = first

    def idle(self) -> list[Member]:
        """Members without a call in flight, in order."""
        busy = {member.index for member in self.busy.values()}
        return [member for member in self.members if member.index not in busy]

    def fetches(self, member: Member, params_header: LoadParams) -> bool:
        """Whether this version's parameters go along with the member's next collect."""
        if self.fetch == "collect" or member.version < 0:
            is_due = True
        else:
            is_due = member.ended if self.fetch == "episode" else member.collects % self.fetch == 0
        return is_due and params_header.version > member.version

    def dispatch(self, member: Member, params_header: LoadParams, params: Ref) -> Ref:
        """Start a collect; the parameters go along only where `fetches` says so. Returns a reference to the columns.

        Waiting for the columns, not for the header, has them on this node before replay is asked to take them: a node
        that is lost while they travel does not hold up replay.
        """
        member.loaded = self.fetches(member, params_header)
        args = (params_header, params) if member.loaded else (params_header,)
        member.issued = now()  # before the call: in process it takes all its time here
        self.waiting[member.index - self._first].stop(member.issued)
        member.header, columns = member.handle.call("collect", *args, results=2)
        member.version = params_header.version if member.loaded else member.version
        member.collects += 1
        self.busy[columns] = member
        return columns

    def finish(self, ref: Ref) -> Collected:
        """Take the result of a collect that is ready; a member that died is replaced, or dropped with its node."""
        member = self.busy.pop(ref)
        self.waiting[member.index - self._first].start(now())
        try:
            header: InsertTransition = get(member.header)
        except ActorUnavailable as error:
            log.info("%s %d is out of reach: %s", self.name, member.index, error)
            member.version = -1
            return Collected(member.index, None, None)
        except ActorDied as error:
            return Collected(member.index, None, None, restarts=self._replace(member, error))
        member.ended = bool(header.episodes)
        self.slowest = max(self.slowest, header.collect_s)
        if member.lost is not None:
            self.restart_seconds.append(now() - member.lost)
            self._note(f"{self._restarted(member)} in {self.restart_seconds[-1]:.1f} s")
            member.lost = None
        return Collected(member.index, header, ref, member.loaded)

    def gather(self, window_s: float | None) -> list[Collected]:
        """All results that are ready within `window_s` of the first (None: of all), in order of the members."""
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
        """When the first of those that are busy hangs [s, as `now` has it]; infinity without any."""
        return min((self._deadline(member) for member in self.busy.values()), default=float("inf"))

    def kill_overdue(self, moment: float) -> None:
        """Kill members that hang; `finish` then finds them dead. To be called when no answer is ready."""
        for member in self.busy.values():
            if moment >= self._deadline(member):
                member.hung = True
                self._lost(member, f"hung: no hand-over for {moment - member.issued:.3g} s (worker.step_timeout_s)")
                member.handle.kill()

    def take_notes(self) -> list[str]:
        """The warnings about lost members since the last take: a proxy hands them on, for the user to see."""
        notes, self.notes = self.notes, []
        return notes

    def _deadline(self, member: Member) -> float:
        if member.hung:
            return float("inf")
        return member.issued + self.slowest + self.timeout_s + (START_S if member.collects == 1 else 0.0)

    def wait_seconds(self, moment: float) -> float:
        """Time [s] until `moment` that members spent without work since their first, summed over them."""
        return sum(waiting.seconds(moment) for waiting in self.waiting)

    def _replace(self, member: Member, error: Exception) -> int:
        """Returns the restarts that it took: one, or none where the node is gone."""
        if not member.hung:
            self._lost(member, f"died ({error})")
        try:
            handle = self.spawn(member.index, member.incarnation + 1)
        except NodeGone as gone:
            self._drop(member, gone)
            return 0
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

    def _lost(self, member: Member, cause: str) -> None:
        if member.lost is not None:
            self._note(f"{self._restarted(member)}, and lost again before its first hand-over")
        member.lost = now()
        member.causes.append(cause)
        log.info("%s %d %s", self.name, member.index, cause)

    def _note(self, text: str) -> None:
        log.warning(text)
        self.notes.append(text)

    def _restarted(self, member: Member) -> str:
        """What happened to a member, how often, for the user."""
        count = f"{len(member.causes)}/{self.max_restarts}"
        return f"{self.name} {member.index} {member.causes[-1]}, restarted {count}"

    def _drop(self, member: Member, gone: NodeGone) -> None:
        self.members.remove(member)
        self.waiting[member.index - self._first].stop(now())
        if not self.members:
            raise RoleLost(f"{gone}, and with it the last worker") from gone
        left, all_of_them = (self.share * len(them) for them in (self.members, self.waiting))
        log.warning("%s: going on with %d of %d workers", gone, left, all_of_them)
