"""Edges: what the orchestrator has in hand of every role."""

from collections.abc import Callable
from dataclasses import dataclass

from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.edges.trainer_group import TrainerGroup
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.place.handles import Handle, Ref


@dataclass(frozen=True)
class Edges:
    """One edge for each kind of role, however many there are of it.

    `share` stores a parameter vector where all workers can read it, and gives the reference to send to them.
    """

    pool: WorkerPool
    replay: ReplayShards
    trainers: TrainerGroup
    server: Handle
    manage: ManageLink
    share: Callable[[Ref], Ref]
