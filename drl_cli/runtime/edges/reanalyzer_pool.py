"""ReanalyzerPool: sends windows and new parameters to re-analysers, and replaces those that die or hang."""

from typing import TypeAlias

from drl_cli.runtime.edges import pool
from drl_cli.runtime.interfaces import ReanalyzerRole
from drl_cli.runtime.messages import BatchTrainingData, LoadParams, ReanalysisReport, UpdatePriority
from drl_cli.runtime.place.ask import as_value, ask_parts
from drl_cli.runtime.place.handles import Ref
from drl_cli.types import Array, Columns

Member: TypeAlias = pool.Member[ReanalyzerRole, ReanalysisReport]
"""A re-analyser and its state."""


class ReanalyzerPool(pool.Pool[ReanalyzerRole, ReanalysisReport]):
    """The re-analysers. One is busy from `dispatch` until `answer`, with the reference to its new values."""

    unit = "re-analyser"
    keys = pool.Keys("reanalyzer.max_restarts", "orchestrator.stall_s", "answer")

    def dispatch(
        self,
        member: Member,
        drawn: tuple[Ref[BatchTrainingData], Ref[Columns]],
        newest: tuple[Ref[LoadParams], Ref[Array]] | None,
    ) -> Ref[UpdatePriority]:
        """Have a member search windows, with the `newest` parameters if given. Return a reference to the new values."""
        self.issue(member)
        args = as_value(drawn[0]), as_value(drawn[1])
        if newest is not None:
            args = (*args, as_value(newest[0]), as_value(newest[1]))  # type: ignore[assignment]
        report, values = ask_parts(member.handle, 2, ReanalyzerRole.reanalyze, *args)
        self.expect(member, report, values)
        return values
