"""WorkerProxy: collects from the workers of one node and answers like a single worker."""

import time

import numpy as np

from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.runtime.interfaces import CollectRole
from drl_cli.runtime.messages import InsertTransition, MessageCounts, ProcessUse, Told
from drl_cli.runtime.place.handles import Ref, get
from drl_cli.runtime.place.ray_runtime import Runtime
from drl_cli.runtime.place.usage import AskedUses
from drl_cli.types import Array, Columns, LoadParams


class WorkerProxy:
    """Keeps one copy of the parameters for all workers of its node, and merges the blocks of these workers.

    Blocks that arrive within `window_s` of the first are merged. If `window_s` is None (mode=sync), the proxy waits for
    all workers.
    """

    def __init__(self, pool: WorkerPool, runtime: Runtime, window_s: float | None) -> None:
        self.pool, self.runtime, self.window_s = pool, runtime, window_s
        self.params: Ref[Array] | None = None
        self.messages = MessageCounts()
        self.asked = AskedUses()

    def collect(self, params_header: LoadParams, params: Array | None = None) -> tuple[InsertTransition, Columns]:
        """Call every idle worker. Return the merged header and columns of the workers that finish in time."""
        started = time.perf_counter()
        if params is not None:
            self.params = self.runtime.put(params)
        headers, arrived = list[InsertTransition](), list[Ref[Columns]]()
        restarts = self.pool.restarts
        while not headers:
            for member in self.pool.idle():
                self.pool.dispatch(member, params_header, self.params)
                self.messages.add(8, int(member.loaded))
            for _, header, _, block in self.pool.gather(self.window_s):
                if header is not None:
                    headers.append(header)
                    arrived.append(block)
        self.messages.add(1, len(headers))
        blocks = [get(block) for block in arrived]
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        merged = InsertTransition(
            blocks=tuple(block for header in headers for block in header.blocks),
            episodes=tuple(episode for header in headers for episode in header.episodes),
            seconds=time.perf_counter() - started,
            restarts=self.pool.restarts - restarts,
            routes=self.messages.take(),
            faults=tuple(fault for header in headers for fault in header.faults),
            notes=(*self.pool.take_notes(), *(note for header in headers for note in header.notes)),
            work_s=sum(header.work_s for header in headers),
            env_s=sum(header.env_s for header in headers),
            policy_s=sum(header.policy_s for header in headers),
        )
        return merged, columns

    def told_steps(self) -> list[Told]:
        """Return the steps that the workers have told so far. Another thread may call this during `collect`."""
        return self.pool.told_steps()

    def uses(self) -> list[ProcessUse]:
        """Return what the workers have answered about their processes since the last call."""
        return self.asked.take(member.handle for member in self.pool.members)

    def close(self) -> None:
        for member in self.pool.members:
            member.handle.ask(CollectRole.close)
