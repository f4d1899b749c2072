"""RayRuntime: runs every role as an actor of Ray, each in a process with a log file."""

import gc
import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, Unpack

import psutil

from drl_cli.errors import NodeGone
from drl_cli.metrics.printed import write_prints
from drl_cli.runtime.messages import ProcessUse
from drl_cli.runtime.place import crashes, told
from drl_cli.runtime.place.handles import LocalRef, LocalRuntime, RayHandle, Ref, Where, get, ray
from drl_cli.runtime.place.usage import use_of
from drl_cli.runtime.place.users import named
from drl_cli.utils.files import LogFile

INLINE_BYTES = 50_000
"""Smaller values are sent with each call. This is as fast as Ray's object store and takes no memory there."""

T = TypeVar("T")
Role = TypeVar("Role")
Args = TypeVarTuple("Args")


class Host:
    """The Ray actor that contains a role. If the creation of the role fails, every call raises the error."""

    modules: Collection[str] = ()  # see `Where`

    def __init__(self, log_file: str, factory: Callable[..., object], *args: Any) -> None:
        try:
            os.makedirs(os.path.dirname(log_file), exist_ok=True)
            handler: logging.Handler = LogFile(log_file)
        except OSError:  # the node lacks the run's folder and can't create the file
            handler = logging.StreamHandler()
        line = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(handlers=[handler], level=logging.INFO, format=line)
        crashes.write_crashes(crashes.crash_file(log_file))
        write_prints(log_file)
        logging.info("%s is process %d", os.path.basename(log_file).removesuffix(".log"), os.getpid())
        self.role: object = None
        self.error: Exception | None = None
        try:
            self.role = factory(*args)
        except Exception as error:
            self.error = named(error, self.modules)
            logging.exception("can't be built", exc_info=self.error)
        told.tell(self.role, told.told_file(log_file))
        gc.freeze()  # the garbage collector need not scan objects that live as long as the process

    def ping(self) -> int:
        return os.getpid()

    def uses(self) -> list[ProcessUse]:
        others = self.role.uses() if hasattr(self.role, "uses") else []
        return [use_of(psutil.Process(), socket.gethostname(), type(self).__name__), *others]

    def call(self, method: str, *args: Any) -> Any:
        if self.error is not None:
            raise self.error
        try:
            return getattr(self.role, method)(*args)
        except Exception as error:
            failed = named(error, self.modules)
            logging.exception("%s failed", method, exc_info=failed)
            if failed is error:
                raise
            raise failed from error


class RayRuntime:
    """Runs every role as a Ray actor with a separate log file. Has the methods of LocalRuntime.

    `ready` waits for Ray and must raise RoleLost if Ray is gone. `is_up` returns whether `ready` would return at once.
    `env` names the environment in messages about crashes.
    """

    def __init__(
        self,
        log_folder: str,
        ready: Callable[[], None] = lambda: None,
        is_up: Callable[[], bool] = lambda: True,
        nodes: Sequence[str] = (),
        env: str = "",
    ) -> None:
        self.log_folder, self.ready, self.is_up, self.nodes, self.env = log_folder, ready, is_up, nodes, env

    def __reduce__(self) -> tuple[Any, ...]:
        # a process that unpickles this object already runs on Ray
        return partial(RayRuntime, env=self.env), (self.log_folder,)

    def spawn(
        self, role: str, factory: Callable[[*Args], Role], *args: *Args, **where: Unpack[Where]
    ) -> RayHandle[Role]:
        self.ready()
        gpus, node, concurrent = where.get("gpus", 0), where.get("node"), where.get("concurrent", ())
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        if node is not None:
            known = {entry["NodeID"]: entry for entry in ray.nodes()}
            if node not in known or not known[node]["Alive"]:
                address = known[node]["NodeManagerAddress"] if node in known else "unknown address"
                raise NodeGone(f"node {address} ({node[:6]}) is gone")
        if gpus == 0:  # for a role with a GPU, Ray chooses the node
            options["scheduling_strategy"] = on_node(node or ray.get_runtime_context().get_node_id())
        if concurrent:
            options["concurrency_groups"] = dict.fromkeys(concurrent, 1)
        log_file = f"{self.log_folder}/{role.replace(' ', '-')}.log"
        # Ray names the process after its class: `Usage` and `top` show this name
        host = type(role, (Host,), {"modules": where.get("modules", ())})
        crash_file = crashes.crash_file(log_file)
        crash_file.unlink(missing_ok=True)  # a file of the previous process, after a restart or a resume
        actor = ray.remote(**options)(host).remote(log_file, factory, *args)
        crashes.watch_actor(actor._actor_id.hex(), crash_file, self.env)
        return RayHandle(actor, log_file, concurrent)

    def put(self, value: T | Ref[T]) -> Ref[T]:
        if isinstance(value, LocalRef):
            value = get(value)
        if isinstance(value, ray.ObjectRef):
            there: Ref[T] = value
            return there
        if getattr(value, "nbytes", INLINE_BYTES) < INLINE_BYTES:
            return LocalRef(value)
        self.ready()
        ref: Ref[T] = ray.put(value)
        return ref

    def gpus(self) -> int:
        self.ready()
        return int(ray.cluster_resources().get("GPU", 0))


Runtime: TypeAlias = LocalRuntime | RayRuntime


def on_node(node: str) -> Any:  # Any: a Ray class
    """Return the Ray scheduling strategy that runs an actor or a task on one node."""
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)


def node_address() -> str:
    """Return the address of this node in the Ray cluster."""
    address: str = ray.util.get_node_ip_address()
    return address
