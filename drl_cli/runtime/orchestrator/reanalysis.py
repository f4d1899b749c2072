"""Reanalysis: has re-analysers search stored steps again, at a fixed ratio to the transitions in replay."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from drl_cli.config.config import Config
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.edges.pool import ReanalyzerMember
from drl_cli.runtime.interfaces import ReanalyzerRole, ServerRole
from drl_cli.runtime.messages import BatchTrainingData, SampleBatch, UpdatePriority
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import ROUNDING, Limiter, RateLimiter, required_band
from drl_cli.runtime.place.handles import Ref, get
from drl_cli.types import Array, Columns, LoadParams


class Reanalysis:
    """Keeps the steps that were searched again near `reanalyzer.ratio` times the transitions since `start`.

    Re-analysis begins at the first version with updates: before that, a search would only spread the values of
    untrained networks. `start` is the number of transitions at this moment, or None. `done` counts the steps of windows
    without padding whose new values were sent to replay since then. The steps of a call in flight count as
    `config.reanalyzed_per_call`. Workers wait if re-analysers are late, and re-analysers if they are ahead, by half of
    `band`; with a band of ratio K + steps per call, one side may always go on (see RateLimiter).
    """

    def __init__(self, config: Config, edges: Edges, limiter: Limiter, progress: Progress, calls: Calls) -> None:
        self.config, self.limiter, self.progress, self.calls = config, limiter, progress, calls
        self.pool, self.replay, self.server = edges.reanalyzers, edges.replay, edges.server
        self.ratio, self.most = config.reanalyzer.ratio, config.reanalyzed_per_call
        rows, batches = config.most_workers * config.rows_per_collect, config.reanalyzer.num * self.most
        self.band = 2 * required_band(self.ratio, rows, batches)
        self.start: int | None = None
        self.done = 0

    @property
    def behind(self) -> float:
        """The steps that are due since `start`, less those searched or in flight. Negative: ahead of the ratio."""
        assert self.start is not None
        assert isinstance(self.limiter, RateLimiter), "windows have a replay ratio"
        return self.ratio * (self.limiter.inserts - self.start) - self.done - self.most * len(self.pool.busy)

    @property
    def landed(self) -> int:
        """The number of transitions sent to replay."""
        assert isinstance(self.limiter, RateLimiter)
        return self.limiter.landed

    def may_collect(self, rows: int) -> bool:
        """Return whether workers may collect as many more transitions."""
        if self.start is None or self.limiter.free:
            return True
        return self.behind + self.ratio * rows <= self.band / 2 + ROUNDING

    def may_search(self) -> bool:
        """Return whether one more call of a re-analyser is allowed now."""
        return self.start is not None and (self.limiter.free or self.behind - self.most >= -self.band / 2 - ROUNDING)

    def go_on(self, pushed: LoadParams, env_steps: int) -> None:
        """Give work to idle re-analysers, as far as the ratio allows. `pushed` is the parameter server's version."""
        if not self.pool.members:
            return
        if self.start is None and pushed.opt_steps > 0 and self.landed >= max(1, self.config.min_inserts):
            self.start = self.landed
        for member in sorted(self.pool.idle(), key=lambda member: member.issued):
            if not self.may_search():
                break
            self._dispatch(member, pushed, env_steps)

    def scalars(self) -> dict[str, float]:
        """Return the values for a report: the steps so far, and per transition since `start`."""
        found = {"perf/reanalyzed_steps": float(self.progress.reanalyzed_steps)}
        if self.start is None or self.landed <= self.start:
            return found
        return found | {"perf/reanalyzed_per_transition": self.done / (self.landed - self.start)}

    def state(self) -> dict[str, Any]:
        """Return the counts for a checkpoint, without calls in flight, as json; empty without members."""
        return {"reanalysis": {"start": self.start, "done": self.done}} if self.pool.members else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.start, self.done = state["start"], state["done"]

    def _dispatch(self, member: ReanalyzerMember, pushed: LoadParams, env_steps: int) -> None:
        message = SampleBatch(1, self.config.reanalyzer.windows, pushed.version, env_steps=env_steps)
        shard, (header, columns) = self.replay.draw(message)
        drawn = cast(BatchTrainingData, header), cast(Columns, columns)
        if member.version < pushed.version:
            # At least `pushed`, because the server answers in order.
            newest, params = self.server.ask_parts(2, ServerRole.pull)
            member.version = pushed.version
            given = cast(LoadParams, newest), cast(Array, params)
            values = self.pool.call(member, ReanalyzerRole.reanalyze, *drawn, *given)
        else:
            values = self.pool.call(member, ReanalyzerRole.reanalyze, *drawn)
        self.progress.trace.add(3)
        self.progress.trace.add(4)
        self.calls.expect(values, f"reanalyzer {member.index}", partial(self._on_values, shard))

    def _on_values(self, shard: int, values: Ref[UpdatePriority]) -> None:
        _, report, restarts = self.pool.answer(values)
        self.progress.reanalyzer_restarts += restarts
        if report is None:
            return
        self.done += report.steps
        self.progress.reanalyzed(report)
        self.calls.expect(self.replay.update_priorities(shard, values), "replay", get, quiet=True)
        self.progress.trace.add(5)
