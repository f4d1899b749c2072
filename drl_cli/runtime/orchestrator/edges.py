"""Edges: the orchestrator's connection to every role."""

from collections.abc import Callable
from dataclasses import dataclass

from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.edges.reanalyzer_pool import ReanalyzerPool
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.edges.trainer_group import TrainerGroup
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.interfaces import ServerRole
from drl_cli.runtime.place.handles import Handle, Ref
from drl_cli.types import Array


@dataclass(frozen=True)
class Edges:
    """One connection for each kind of role. `share` stores parameters for all workers and returns a reference."""

    pool: WorkerPool
    replay: ReplayShards
    trainers: TrainerGroup
    server: Handle[ServerRole]
    manage: ManageLink
    reanalyzers: ReanalyzerPool
    share: Callable[[Ref[Array] | Array], Ref[Array]]
