"""Calls of roles for mypy, which `scripts/check` runs on this file. Nothing here runs.

mypy must reject each line with an ignored error. If mypy accepts such a line, it reports the comment as unused.
"""

from typing import cast

from drl_cli.runtime.interfaces import CollectRole, ReplayRole, ServerRole, TrainerRole, WorkerRole
from drl_cli.runtime.messages import SampleBatch
from drl_cli.runtime.place.handles import Handle, LocalRuntime, Ref, get
from drl_cli.runtime.roles.parameter_server import ParameterServer
from drl_cli.types import Array, LoadParams, State


def right(
    server: Handle[ServerRole],
    worker: Handle[WorkerRole],
    shard: Handle[ReplayRole],
    header: LoadParams | Ref[LoadParams],
    params: Ref[Array],
) -> tuple[int, State]:
    member: Handle[CollectRole] = worker  # every worker is a collector
    member.ask_parts(2, CollectRole.collect, LoadParams(0, 0, 0))
    server.ask(ServerRole.push, cast(LoadParams, header), cast(Array, params))
    shard.ask_parts(6, ReplayRole.sample, SampleBatch(1, 8, 0, 3, 0))
    newest, _ = server.ask_parts(2, ServerRole.pull)
    return get(newest).version, get(worker.ask(WorkerRole.state))


def wrong_name(server: Handle[ServerRole]) -> None:
    server.ask(ServerRole.pop)  # type: ignore[attr-defined]
    server.ask(TrainerRole.describe)  # type: ignore[arg-type]


def wrong_arguments(server: Handle[ServerRole], header: LoadParams, params: Ref[Array]) -> None:
    server.ask(ServerRole.push, header)  # type: ignore[call-arg]
    server.ask(ServerRole.push, header, params)  # type: ignore[arg-type]
    server.ask(ServerRole.push, cast(Array, params), cast(Array, params))  # type: ignore[arg-type]
    server.ask(ServerRole.pull, header)  # type: ignore[call-arg]


def wrong_result(trainer: Handle[TrainerRole], server: Handle[ServerRole]) -> int:
    trainer.ask_parts(4, TrainerRole.publish, 1, 2)  # type: ignore[call-overload]
    _, _, _ = server.ask_parts(2, ServerRole.pull)  # type: ignore[misc]
    return get(trainer.ask(TrainerRole.state))  # type: ignore[return-value]


def wrong_role(server: Handle[ServerRole]) -> Handle[TrainerRole]:
    LocalRuntime().spawn("parameter server", ParameterServer, 1)  # type: ignore[arg-type]
    started: Handle[TrainerRole] = LocalRuntime().spawn("trainer", ParameterServer)  # type: ignore[arg-type]
    return started or server  # type: ignore[return-value]
