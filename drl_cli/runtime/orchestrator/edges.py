"""Edges: the orchestrator's connection to every role."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.edges.pool import ReanalyzerPool, WorkerPool
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.interfaces import ServerRole, TrainerRole
from drl_cli.runtime.place.handles import Handle, Ref
from drl_cli.types import Array


@dataclass(frozen=True)
class Edges:
    """One connection for each kind of role. `trainers` has them by name: `trainer`, or `trainer 0` and so on.

    `share` stores parameters for all workers and returns a reference. If `is_cluster`, roles may run on other machines.
    """

    pool: WorkerPool
    replay: ReplayShards
    trainers: Mapping[str, Handle[TrainerRole]]
    server: Handle[ServerRole]
    manage: ManageLink
    reanalyzers: ReanalyzerPool
    share: Callable[[Ref[Array] | Array], Ref[Array]]
    is_cluster: bool = False

    def handles(self) -> list[Handle[Any]]:
        """Return the handles of all roles that have started."""
        members = [member.handle for member in self.pool.members] + [each.handle for each in self.reanalyzers.members]
        manage = [] if self.manage.handle is None else [self.manage.handle]
        return [*members, *self.replay.shards, *self.trainers.values(), self.server, *manage]
