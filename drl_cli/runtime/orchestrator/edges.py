"""Edges: the orchestrator's connection to every role."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.edges.pool import ReanalyzerPool, WorkerPool
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.interfaces import ServerRole, TrainerRole
from drl_cli.runtime.place.handles import Handle, Ref
from drl_cli.types import Array


@dataclass(frozen=True)
class Edges:
    """One connection for each kind of role. `trainers` has them by name: `trainer`, or `trainer 0` and so on.

    `share` stores parameters for all workers and returns a reference.
    """

    pool: WorkerPool
    replay: ReplayShards
    trainers: Mapping[str, Handle[TrainerRole]]
    server: Handle[ServerRole]
    manage: ManageLink
    reanalyzers: ReanalyzerPool
    share: Callable[[Ref[Array] | Array], Ref[Array]]
