"""Handles: call a role in this process, or a role in another process on Ray.

`ask(handle, TrainerRole.train, header, columns)` returns a reference, `get` returns its value, and `wait` returns the
references that are ready. In this process, the role runs before `ask` returns. On Ray, it runs in another process.
"""

import gc
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar, TypeVarTuple, Unpack

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.metrics.printed import write_prints
from drl_cli.runtime.place import crashes, told
from drl_cli.runtime.place.users import named
from drl_cli.utils.files import LogFile
from drl_cli.utils.lazy import LazyModule

os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # Ray would replace the handlers of signals.py
ray = LazyModule("ray")  # imported at first use, because the import takes one second

FETCH_S = 300.0
"""Maximum time [s] to wait for the value of a reference. Usually the value is ready, and Ray only has to bring it."""
INLINE_BYTES = 50_000
"""Smaller values are sent with each call. This is as fast as Ray's object store and takes no memory there."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Role = TypeVar("Role")
Role_co = TypeVar("Role_co", covariant=True)
Args = TypeVarTuple("Args")


class Ref(Generic[T_co]):
    """A reference to a value of type T: a LocalRef or, only for mypy, a ray.ObjectRef."""


class ActorDied(Exception):
    """The process of a role has ended."""


class ActorUnavailable(ActorDied):
    """A role did not answer this call. Only the next call shows whether the role is dead."""


class ObjectLost(ActorDied):
    """A value was lost with its process or node. A call with this value as argument fails with the same error."""


@dataclass(eq=False)
class LocalRef(Ref[T_co]):
    """The result of a call in this process."""

    value: Any = None
    error: BaseException | None = None


class LocalHandle(Generic[Role_co]):
    """A role in this process. As on Ray, an error of a call is raised later, by `get`."""

    def __init__(self, role: Role_co, modules: Collection[str] = ()) -> None:
        self.role: Role_co | None = role
        self.modules = modules

    def call(self, method: str, *args: Any, results: int = 1) -> Any:
        """Call a method of the role; use `ask`, which has types. References among the arguments become their values.

        Return one reference, or a list of `results` references if the method returns a tuple of that length.
        """
        kinds: Any = (LocalRef, ray.ObjectRef) if "ray" in sys.modules else LocalRef  # Any: a class of Ray
        try:
            value = getattr(self.role, method)(*[get(arg) if isinstance(arg, kinds) else arg for arg in args])
        except Exception as error:
            refs: list[Ref[Any]] = [LocalRef(error=named(error, self.modules)) for _ in range(results)]
            return refs[0] if results == 1 else refs
        return LocalRef(value) if results == 1 else [LocalRef(part) for part in value]

    def told(self) -> told.News:
        """Return what the role tells. Another thread may call this."""
        return told.told_by(self.role)

    def ping(self) -> Ref[int]:
        """Return a reference to the role's process id, which is ready after all earlier calls have ended."""
        return LocalRef(os.getpid())

    def kill(self) -> None:
        self.role = None


class Where(TypedDict, total=False):
    """Options of `spawn`: where and how a role runs on Ray."""

    gpus: float  # default 0
    node: str | None  # default None: the node of this process
    concurrent: Collection[str]  # methods that run in separate threads, so they do not delay other methods
    modules: Collection[str]  # modules of the user, whose errors become UserCodeFailed


class LocalRuntime:
    """Runs all roles in this process, one call after the other, so that runs are deterministic."""

    nodes: Sequence[str] = ()  # ids of the cluster's nodes, over which workers are spread

    def spawn(
        self, role: str, factory: Callable[[*Args], Role], *args: *Args, **where: Unpack[Where]
    ) -> LocalHandle[Role]:
        """Start the role `factory(*args)` and return its handle. Raise NodeGone if the role's node is gone."""
        modules = where.get("modules", ())
        try:
            return LocalHandle(factory(*args), modules)
        except Exception as error:
            if (failed := named(error, modules)) is error:
                raise
            raise failed from error

    def put(self, value: T | Ref[T]) -> Ref[T]:
        return value if isinstance(value, LocalRef) else LocalRef(value)

    def gpus(self) -> int:
        return 0


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


class RayHandle(Generic[Role_co]):
    """A role in another process, in which each method in `concurrent` has a separate thread."""

    def __init__(self, actor: Any, log_file: str, concurrent: Collection[str] = ()) -> None:
        self.actor, self.concurrent = actor, concurrent
        self.told_file = told.told_file(log_file)
        self.told_file.unlink(missing_ok=True)  # a file of the previous process, after a restart or a resume

    def call(self, method: str, *args: Any, results: int = 1) -> Any:
        values = [get(arg) if isinstance(arg, LocalRef) else arg for arg in args]
        options: dict[str, Any] = {"num_returns": results}
        if method in self.concurrent:
            options["concurrency_group"] = method
        return self.actor.call.options(**options).remote(method, *values)

    def told(self) -> told.News:
        """Return what the role's process has told; nothing on another node, whose files are not here."""
        return told.read(self.told_file)

    def ping(self) -> Ref[int]:
        ref: Ref[int] = self.actor.ping.remote()
        return ref

    def kill(self) -> None:
        ray.kill(self.actor)


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
        return partial(RayRuntime, env=self.env), (
            self.log_folder,
        )  # a process that unpickles this object already runs on Ray

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


Handle: TypeAlias = LocalHandle[Role_co] | RayHandle[Role_co]
Runtime: TypeAlias = LocalRuntime | RayRuntime


def on_node(node: str) -> Any:  # Any: a Ray class
    """Return the Ray scheduling strategy that runs an actor or a task on one node."""
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)


def node_address() -> str:
    """Return the address of this node in the Ray cluster."""
    address: str = ray.util.get_node_ip_address()
    return address


def get(ref: Ref[T]) -> T:
    """Return the value of a reference. Raise the error of its call, or ActorDied if the process or value is gone."""
    value: T
    if isinstance(ref, LocalRef):
        if ref.error is not None:
            raise ref.error
        value = ref.value
        return value
    try:
        value = ray.get(ref, timeout=FETCH_S)
        return value
    except ray.exceptions.GetTimeoutError as error:
        raise RoleLost(f"Ray did not bring a value within {FETCH_S:g} s") from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):  # the value of an argument was lost
            raise ObjectLost(_reason(error.cause)) from error
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    except ray.exceptions.ObjectLostError as error:
        raise ObjectLost(_reason(error)) from error
    except ray.exceptions.ActorUnavailableError as error:
        raise ActorUnavailable(_reason(error)) from error
    except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
        raise ActorDied(crashes.crash(getattr(error, "actor_id", None)) or _reason(error)) from error


def wait(refs: Sequence[Ref[T]], timeout_s: float) -> list[Ref[T]]:
    """Return the references that are ready, in order. If none is ready, wait up to `timeout_s` for the first."""
    ready: list[Ref[T]] = [ref for ref in refs if isinstance(ref, LocalRef)]
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


def _reason(error: Exception) -> str:
    """Return the line of Ray's error text that explains why a process ended or could not start."""
    text = str(error)
    if "connection error code" in text:  # Ray has no more information if a process was killed or crashed
        return "its process ended unexpectedly"
    if detail := re.search(r"Worker exit detail: (.*)", text):
        return detail[1].rstrip(".")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "creation task" in lines[0] else lines[0]
