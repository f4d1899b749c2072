"""Collector: sends collect calls to workers, inserts the returned blocks into replay, and counts steps and rows."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from drl_cli.config.config import Config
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.edges.pool import Collected, WorkerMember
from drl_cli.runtime.messages import InsertTransition
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.learning import Learning
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter
from drl_cli.runtime.place.handles import ObjectLost, Ref, get
from drl_cli.types import Columns
from drl_cli.utils.clock import now

log = logging.getLogger(__name__)


class Collector:
    """Waits for blocks until `window_s` after the first block, then inserts all of them in the order of their workers.

    A collect call asks for `rows` environment steps of each worker of a pool's member. `issued` counts the steps that
    were taken and the steps requested by calls in flight. `inserting` counts the blocks whose insertion replay has not
    confirmed yet.
    """

    def __init__(self, config: Config, edges: Edges, limiter: Limiter, progress: Progress, calls: Calls) -> None:
        self.pool, self.replay = edges.pool, edges.replay
        self.limiter, self.progress, self.calls = limiter, progress, calls
        self.rows, self.random_steps = config.rows_per_collect, config.random_steps
        self.window_s = config.orchestrator.gather_window_s if config.mode == "async" else math.inf  # sync: no limit
        self.arrived: list[Collected] = []
        self.window_ends = math.inf
        self.issued = 0
        self.inserting = 0

    def dispatch(self, member: WorkerMember, learning: Learning) -> None:
        """Send a collect call with the newest version. A restarted worker gets the parameter server's copy of it."""
        params_header = replace(learning.params_header, random_actions=self.issued < self.random_steps)
        is_restarted = bool(member.causes) and member.version < 0 <= params_header.version
        ref = self.pool.dispatch(member, params_header, learning.pull() if is_restarted else learning.params)
        if member.loaded:
            self.progress.trace.add(7, member=member.index, version=params_header.version)
        rows = self.rows * member.share
        self.limiter.issue_collect(rows)
        self.issued += rows
        self.calls.expect(ref, f"{self.pool.name} {member.index}", self._on_collected)

    @property
    def uncertain(self) -> int:
        """The part of `issued` that may not be taken: a proxy may return the steps of only one of its workers."""
        in_flight = [member.share for member in (*self.pool.busy.values(), *(done[0] for done in self.arrived))]
        return self.rows * (sum(in_flight) - len(in_flight))

    def _on_collected(self, ref: Ref[Columns]) -> None:
        if not self.arrived:
            self.window_ends = now() + self.window_s
        self.arrived.append((*self.pool.answer(ref), ref))

    def is_due(self) -> bool:
        return bool(self.arrived) and (now() >= self.window_ends or not self.pool.busy)

    def insert_arrived(self) -> None:
        """Count the blocks that have arrived, and send them to replay in the order of their workers."""
        headers, columns = list[InsertTransition](), list[Ref[Columns]]()
        for member, header, restarts, block in sorted(self.arrived, key=lambda done: done[0].index):
            rows = self.rows * member.share
            if header is None:
                self.progress.worker_restarts += restarts
                self.issued -= rows
                self.limiter.land(rows, 0)
                continue
            headers.append(header)
            columns.append(block)
            self.progress.collected(header)
            for line in (*header.faults, *header.notes):
                log.warning(line)
            self.issued += header.env_steps - rows
            self.limiter.land(rows, header.rows)
            routes = header.routes or {1: 1, 8: int(member.loaded)}
            for route, count in (*routes.items(), (2, 1), (3, 1)):
                self.progress.trace.add(route, count)
        self.arrived, self.window_ends = [], math.inf
        self._insert(headers, columns)

    def _insert(self, headers: Sequence[InsertTransition], columns: Sequence[Ref[Columns]]) -> None:
        self.inserting += len(headers)
        for ack, blocks in self.replay.insert(headers, columns):
            own = [headers[i] for i in blocks], [columns[i] for i in blocks]
            self.calls.expect(ack, "replay", partial(self._on_inserted, *own), quiet=True)

    def _on_inserted(
        self, headers: Sequence[InsertTransition], columns: Sequence[Ref[Columns]], ref: Ref[None]
    ) -> None:
        """Confirm that blocks are in replay. If a block was lost with a node, subtract it from the counts.

        A call whose block was lost inserts none of its blocks, so each of several blocks is sent again in its own call.
        """
        self.inserting -= len(headers)
        try:
            get(ref)
        except ObjectLost as error:
            if len(headers) > 1:
                for header, column in zip(headers, columns, strict=True):
                    self._insert([header], [column])
                return
            (header,) = headers
            self.progress.lost(header)
            self.issued -= header.env_steps
            self.limiter.land(0, -header.rows)
            log.warning("a block of %d transitions was lost on its way to replay (%s)", header.rows, error)
