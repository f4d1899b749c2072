"""NodeWatch: gives a proxy with workers to each node that joins the cluster during a run."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drl_cli.config.config import Config
from drl_cli.errors import NodeGone
from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.utils.clock import now
from drl_cli.utils.machine import Node
from drl_cli.utils.shown import tell

log = logging.getLogger(__name__)

PERIOD_S = 2.0
"""Time [s] between two looks at the nodes."""


@dataclass(frozen=True)
class Seat:
    """The node of a proxy, and the indices of its workers."""

    node: str | None
    workers: Sequence[int]


class NodeWatch:
    """Has a proxy join the pool for each node of `offers()` without a proxy. The pool removes proxies with their nodes.

    `seats` are the proxies' seats by index. A worker gets the lowest free index, so the indices stay below
    `most_workers`. `on_change` is called with the numbers of workers of all proxies after a change, and `forget` with
    the names of the roles of a removed proxy.
    """

    def __init__(
        self,
        config: Config,
        pool: WorkerPool,
        seats: dict[int, Seat],
        offers: Callable[[], Sequence[Node]],
        on_change: Callable[[Sequence[int]], None],
        forget: Callable[[Sequence[str]], None],
    ) -> None:
        self.config, self.pool, self.seats, self.offers = config, pool, seats, offers
        self.on_change, self.forget = on_change, forget
        self.next = 0.0
        self._shares: list[int] = []

    def look(self) -> None:
        """Note which proxies were removed. If the run `is_elastic`, have new nodes join if a look is due."""
        for index in self.seats.keys() - {member.index for member in self.pool.members}:
            seat = self.seats.pop(index)
            self.forget([f"proxy {index}", *(f"worker {worker}" for worker in seat.workers)])
        if not self.config.worker.is_elastic:
            return
        if now() >= self.next:
            self.next = now() + PERIOD_S
            for node in sorted(self.offers(), key=lambda node: not node.is_here):  # this node stays until the end
                self._seat(node)
        shares = [member.share for member in self.pool.members]
        if shares != self._shares:
            self._shares = shares
            self.on_change(shares)

    def _seat(self, node: Node) -> None:
        if any(seat.node == node.id for seat in self.seats.values()):
            return
        used = {worker for seat in self.seats.values() for worker in seat.workers}
        free = [index for index in range(self.config.most_workers) if index not in used]
        workers = free[: min(node.num_workers(self.config.trainer.num), most_per_node(self.config))]
        if not workers:  # worker.max_num is reached
            return
        index = next(index for index in range(len(self.seats) + 1) if index not in self.seats)
        self.seats[index] = Seat(node.id, workers)
        try:
            self.pool.join(index, len(workers))
        except NodeGone as gone:  # since the offer
            log.info("%s", gone)
            return
        if self._shares:
            tell(f"{node} has joined: going on with {self.pool.num_workers} workers")
        else:
            log.info("%s gets %d workers", node, len(workers))


def most_per_node(config: Config) -> int:
    """Return the most workers of one node, whose merged block has to fit into a shard or into the queue."""
    rows, steps = config.rows_per_collect, config.algo.n_step * config.worker.envs
    if config.is_on_policy:
        room = config.replay.batches_ahead(config.versions_per_batch) * config.trainer.batch_size
    else:
        room = config.replay.num_rows // config.num_shards - steps
    return max(1, room // rows)
