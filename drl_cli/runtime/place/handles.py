"""Where a role runs: in this process, or as a Ray actor. The only seam between the graph and Ray.

A handle is the edge of the graph: `handle.call("train", header, columns)` gives a reference at once, `get` its value,
`wait` those that are ready. In this process a call happens when it is made; on Ray, in the role's own process.
"""

import gc
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from drl_cli.errors import NodeGone
from drl_cli.utils.lazy import LazyModule
from drl_cli.utils.log_file import LogFile

ray = LazyModule("ray")  # imported at first use: importing it takes a second that in-process runs need not pay

INLINE_BYTES = 50_000
"""What is smaller goes along with each call: no slower than by way of Ray's store, and it needs no store."""

Ref: TypeAlias = Any
"""A LocalRef or a ray.ObjectRef. Any: Ray's references carry no usable type for what they refer to."""


class ActorDied(Exception):
    """The process of a role is gone."""


class ActorUnavailable(ActorDied):
    """A role did not answer this call; the next one tells whether it is dead."""


class ObjectLost(ActorDied):
    """A value is gone with the process or node that had it; raised for a call whose argument it was, too."""


class Handle(Protocol):
    """A role, wherever it runs."""

    def call(self, method: str, *args: Any, results: int = 1) -> Any:
        """Call a method; arguments that are references are replaced by their values where the role runs.

        Returns one reference, or a list of `results` references to the parts of the tuple that the method returns.
        """

    def ping(self) -> Ref:
        """A reference to the id of the role's process, which is there when the role has answered all calls before."""

    def kill(self) -> None:
        """End the role at once."""


class Runtime(Protocol):
    """Makes roles; `nodes` are those to spread workers over, none where there is but one."""

    nodes: Sequence[str]

    def spawn(
        self, role: str, factory: Callable[..., object], *args: Any, gpus: float = 0, node: str | None = None
    ) -> Handle:
        """Build `factory(*args)` and give its handle; the building may still be going on.

        It runs on `node`, not given: on the node of this process. Raises NodeGone when that is not there any more.
        """

    def put(self, value: Any) -> Ref:
        """A reference to a value, stored once for all who will read it."""

    def gpus(self) -> int:
        """How many GPUs roles can ask for."""


class LocalRef:
    """The result of a call in this process."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value, self.error = value, error


def is_ref(value: Any) -> bool:
    """Whether this is a reference of either kind."""
    return isinstance(value, LocalRef) or ("ray" in sys.modules and isinstance(value, ray.ObjectRef))


class LocalHandle:
    """A role in this process. Its errors surface at `get`, as they do on Ray."""

    def __init__(self, role: object) -> None:
        self.role = role

    def call(self, method: str, *args: Any, results: int = 1) -> Any:
        try:
            value = getattr(self.role, method)(*[get(arg) if is_ref(arg) else arg for arg in args])
        except Exception as error:
            refs = [LocalRef(error=error) for _ in range(results)]
            return refs[0] if results == 1 else refs
        return LocalRef(value) if results == 1 else [LocalRef(part) for part in value]

    def ping(self) -> Ref:
        return LocalRef(os.getpid())

    def kill(self) -> None:
        self.role = None


class LocalRuntime:
    """All roles in this process: deterministic, one call after the other."""

    nodes: Sequence[str] = ()

    def spawn(
        self, role: str, factory: Callable[..., object], *args: Any, gpus: float = 0, node: str | None = None
    ) -> Handle:
        return LocalHandle(factory(*args))

    def put(self, value: Any) -> Ref:
        return value if isinstance(value, LocalRef) else LocalRef(value)

    def gpus(self) -> int:
        return 0


class Host:
    """The Ray actor class that every role lives in. A role that can't be built answers every call with the reason."""

    def __init__(self, log_file: str, factory: Callable[..., object], *args: Any) -> None:
        logging.basicConfig(
            handlers=[_log_handler(log_file)], level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )
        logging.info("%s is process %d", os.path.basename(log_file).removesuffix(".log"), os.getpid())
        self.role: object = None
        self.error: Exception | None = None
        try:
            self.role = factory(*args)
        except Exception as error:
            logging.exception("can't be built")
            self.error = error
        gc.freeze()  # what is there now stays; the collector need not look at it again

    def ping(self) -> int:
        return os.getpid()

    def call(self, method: str, *args: Any) -> Any:
        if self.error is not None:
            raise self.error
        try:
            return getattr(self.role, method)(*args)
        except Exception:
            logging.exception("%s failed", method)
            raise


class RayHandle:
    """A role in its own process."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def call(self, method: str, *args: Any, results: int = 1) -> Any:
        values = [get(a) if isinstance(a, LocalRef) else a for a in args]
        options: dict[str, Any] = {"num_returns": results}
        if method == "evaluate":
            options["concurrency_group"] = "evaluate"
        return self.actor.call.options(**options).remote(method, *values)

    def ping(self) -> Ref:
        return self.actor.ping.remote()

    def kill(self) -> None:
        ray.kill(self.actor)


class RayRuntime:
    """Every role as a Ray actor; each writes its own log file.

    `ready` waits for Ray, and raises if it is gone; `is_up` tells whether it would have to wait.
    """

    def __init__(
        self,
        log_folder: str,
        ready: Callable[[], None] = lambda: None,
        is_up: Callable[[], bool] = lambda: True,
        nodes: Sequence[str] = (),
    ) -> None:
        self.log_folder, self.ready, self.is_up, self.nodes = log_folder, ready, is_up, nodes

    def __reduce__(self) -> tuple[type["RayRuntime"], tuple[str]]:
        return RayRuntime, (self.log_folder,)  # where it arrives, Ray is there

    def spawn(
        self, role: str, factory: Callable[..., object], *args: Any, gpus: float = 0, node: str | None = None
    ) -> Handle:
        self.ready()
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        if node is not None:
            _check_alive(node)
        if gpus == 0:  # a role with a GPU runs where there is one
            here = node or ray.get_runtime_context().get_node_id()
            affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options["scheduling_strategy"] = affinity(here, soft=False)
        if role == "manage":
            options["concurrency_groups"] = {"evaluate": 1}  # a running evaluation must not delay a report
        log_file = f"{self.log_folder}/{role.replace(' ', '-')}.log"
        host = type(role, (Host,), {})  # Ray titles the process after its class: Usage and `top` show whose it is
        return RayHandle(ray.remote(**options)(host).remote(log_file, factory, *args))

    def put(self, value: Any) -> Ref:
        if isinstance(value, LocalRef):
            value = get(value)
        if isinstance(value, ray.ObjectRef):
            return value
        if getattr(value, "nbytes", INLINE_BYTES) < INLINE_BYTES:
            return LocalRef(value)
        self.ready()
        return ray.put(value)

    def gpus(self) -> int:
        self.ready()
        return int(ray.cluster_resources().get("GPU", 0))


def node_address() -> str:
    """Where other nodes of the Ray session find this one."""
    address: str = ray.util.get_node_ip_address()
    return address


def get(ref: Ref) -> Any:
    """The value; raises what the call raised, or ActorDied when the role's process or the value is gone."""
    if isinstance(ref, LocalRef):
        if ref.error is not None:
            raise ref.error
        return ref.value
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):  # it was called with a reference to nothing
            raise ObjectLost(_reason(error.cause)) from error
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    except ray.exceptions.ObjectLostError as error:
        raise ObjectLost(_reason(error)) from error
    except ray.exceptions.ActorUnavailableError as error:
        raise ActorUnavailable(_reason(error)) from error
    except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
        raise ActorDied(_reason(error)) from error


def wait(refs: Sequence[Ref], timeout_s: float) -> list[Ref]:
    """Those that are ready, in the order given: at once when some are, else when the first is or the time is up.

    What is ready has also arrived at this node.
    """
    ready = [ref for ref in refs if isinstance(ref, LocalRef)]
    remote = [ref for ref in refs if not isinstance(ref, LocalRef)]
    if remote:
        done, _ = ray.wait(remote, num_returns=1, timeout=0 if ready else timeout_s)
        if done and len(remote) > 1:
            done, _ = ray.wait(remote, num_returns=len(remote), timeout=0)
        chosen = set(done)
        ready = [ref for ref in refs if isinstance(ref, LocalRef) or ref in chosen]
    elif not ready and timeout_s > 0:
        time.sleep(timeout_s)
    return ready


def _log_handler(path: str) -> logging.Handler:
    """To the file, or to stderr where that can't be made, as on a node without the run's folder."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return LogFile(path)
    except OSError:
        return logging.StreamHandler()


def _check_alive(node: str) -> None:
    """Raise NodeGone, with the node's address, when a node has left the cluster."""
    known = {entry["NodeID"]: entry for entry in ray.nodes()}
    if node not in known or not known[node]["Alive"]:
        address = known[node]["NodeManagerAddress"] if node in known else "unknown address"
        raise NodeGone(f"node {address} ({node[:6]}) is gone")


def _reason(error: Exception) -> str:
    """Ray's explanation in one line: how the process ended, or its first, or where one could not start the last."""
    text = str(error)
    if "connection error code" in text:  # all that Ray knows of a process that was killed or crashed
        return "its process ended unexpectedly"
    if detail := re.search(r"Worker exit detail: (.*)", text):
        return detail[1].rstrip(".")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "creation task" in lines[0] else lines[0]
