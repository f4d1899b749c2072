"""WorkerPool: sends collect calls to workers and gathers their blocks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, cast

from drl_cli.runtime.edges import pool
from drl_cli.runtime.interfaces import CollectRole, WorkerRole
from drl_cli.runtime.messages import InsertTransition, LoadParams, Told
from drl_cli.runtime.place.ask import as_value, ask_parts
from drl_cli.runtime.place.handles import Handle, Ref, wait
from drl_cli.runtime.sections import Fetch
from drl_cli.types import Array, Columns
from drl_cli.utils.clock import now

Member: TypeAlias = "pool.Member[CollectRole, InsertTransition]"
"""A worker or a proxy, and its state."""


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


class WorkerPool(pool.Pool[CollectRole, InsertTransition]):
    """Manages members with these indices: workers, or proxies. More members may `join`, also proxies.

    A member is busy from `dispatch` until `finish`. `fetch` sets when a member receives newer parameters: with each
    call ("collect"), with every n-th call (n), or with the first call after the end of an episode ("episode"). The
    other arguments are those of Pool.
    """

    keys = pool.Keys("worker.max_restarts", "worker.step_timeout_s", "block")

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
        super().__init__(
            name, indices, spawn, max_restarts, timeout_s=timeout_s, incarnation=incarnation, node_of=node_of
        )
        self.fetch = fetch
        self.finished: dict[int, int] = {}  # steps of each worker in the blocks that have arrived

    def fetches(self, member: Member, params_header: LoadParams) -> bool:
        """Return whether the member's next collect call will include the parameters of this version."""
        if self.fetch == "collect" or member.version < 0:
            is_due = True
        else:
            is_due = member.ended if self.fetch == "episode" else member.calls % self.fetch == 0
        return is_due and params_header.version > member.version

    def dispatch(self, member: Member, params_header: LoadParams, params: Ref[Array] | None) -> Ref[Columns]:
        """Send a collect call, with the parameters if `fetches` returns True. Return a reference to the columns.

        The pool waits for the columns, not for the header. The columns are then on this node before replay asks for
        them, and a node that is lost during the transfer does not block replay.
        """
        member.loaded = self.fetches(member, params_header)
        self.issue(member)
        args = (as_value(params),) if member.loaded else ()
        header, columns = ask_parts(member.handle, 2, CollectRole.collect, params_header, *args)
        member.version = params_header.version if member.loaded else member.version
        self.expect(member, header, columns)
        return columns

    def finish(self, ref: Ref[Columns]) -> Collected:
        """Return the answer to a collect call that has ended. Restart the member if it died."""
        member, header, restarts = self.answer(ref)
        if header is None:
            return Collected(member.index, member.share, None, None, restarts=restarts)
        member.ended = bool(header.episodes)
        self.slowest = max(self.slowest, header.collect_s)
        self.finished |= {block.worker: block.last_env_step for block in header.blocks}
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

    def told_steps(self) -> list[Told]:
        """Return the steps that each worker has reported so far. Another thread may call this."""
        return [Told(*told) for member in list(self.members) for told in member.handle.told().steps]

    def running_steps(self) -> int:
        """Return the steps of all running collect calls. Ignore what a worker reported before its last block."""
        told = self.told_steps()
        return sum(each.running for each in told if each.finished == self.finished.get(each.worker, each.finished))
