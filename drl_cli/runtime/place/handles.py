"""Handles: call a role in this process, or a role in another process on Ray.

`handle.ask(TrainerRole.train, header, columns)` returns a reference, `get` returns its value, and `wait` returns the
references that are ready. In this process, the role runs before `ask` returns. On Ray, it runs in another process.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from drl_cli.errors import RoleLost
from drl_cli.runtime.messages import ProcessUse
from drl_cli.runtime.place import crashes, told
from drl_cli.runtime.place.users import named
from drl_cli.utils.lazy import LazyModule

os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # Ray would replace the handlers of signals.py
ray = LazyModule("ray")  # imported at first use, because the import takes one second

FETCH_S = 300.0
"""Maximum time [s] to wait for the value of a reference. Usually the value is ready, and Ray only has to bring it."""
P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
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


class Handle(Generic[Role_co]):
    """A role in this process (LocalHandle) or in another (RayHandle). An error of a call is raised later, by `get`.

    A call names a method of the role's protocol in interfaces.py, so that mypy checks the arguments and the result.
    Arguments are positional. A role receives the value of a reference among the arguments: `cast(Array, params)` gives
    the reference `params` the type that mypy expects.
    """

    def ask(self, method: Callable[Concatenate[Role_co, P], T], *args: P.args, **kwargs: P.kwargs) -> Ref[T]:
        """Call a method of the role, for example `server.ask(ServerRole.push, header, params)`."""
        raise NotImplementedError

    @overload
    def ask_parts(
        self,
        num: Literal[2],
        method: Callable[Concatenate[Role_co, P], tuple[A, B]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Ref[A], Ref[B]]: ...

    @overload
    def ask_parts(
        self,
        num: Literal[4],
        method: Callable[Concatenate[Role_co, P], tuple[A, B, C, D]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Ref[A], Ref[B], Ref[C], Ref[D]]: ...

    @overload
    def ask_parts(
        self, num: int, method: Callable[Concatenate[Role_co, P], list[T]], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Ref[T], ...]: ...

    def ask_parts(self, num: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Ref[Any], ...]:
        """Call a method that returns a tuple or a list of `num` parts. Return a reference to each part."""
        raise NotImplementedError

    def told(self) -> told.News:
        """Return what the role tells. Another thread may call this."""
        raise NotImplementedError

    def ping(self) -> Ref[int]:
        """Return a reference to the role's process id, which is ready after all earlier calls have ended."""
        raise NotImplementedError

    def uses(self) -> Ref[list[ProcessUse]]:
        """Return a reference to the use of the role's process, and of the processes whose use the role collects."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the role's process."""
        raise NotImplementedError


class LocalHandle(Handle[Role_co]):
    """A role in this process."""

    def __init__(self, role: Role_co, modules: Collection[str] = ()) -> None:
        self.role: Role_co | None = role
        self.modules = modules

    def ask(self, method: Callable[..., T], *args: Any) -> LocalRef[T]:  # type: ignore[override]
        kinds: Any = (LocalRef, ray.ObjectRef) if "ray" in sys.modules else LocalRef  # Any: a class of Ray
        try:
            values = [get(arg) if isinstance(arg, kinds) else arg for arg in args]
            return LocalRef(getattr(self.role, method.__name__)(*values))
        except Exception as error:
            return LocalRef(error=named(error, self.modules))

    def ask_parts(self, num: int, method: Callable[..., Any], *args: Any) -> tuple[Ref[Any], ...]:  # type: ignore[override]
        whole = self.ask(method, *args)
        if whole.error is not None:
            return tuple(LocalRef(error=whole.error) for _ in range(num))
        return tuple(LocalRef(part) for part in whole.value)

    def told(self) -> told.News:
        return told.told_by(self.role)

    def ping(self) -> Ref[int]:
        return LocalRef(os.getpid())

    def uses(self) -> Ref[list[ProcessUse]]:
        """Return nothing: `Usage.sample` measures this process."""
        return LocalRef([])

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


class RayHandle(Handle[Role_co]):
    """A role in another process, in which each method in `concurrent` has a separate thread."""

    def __init__(self, actor: Any, log_file: str, concurrent: Collection[str] = ()) -> None:
        self.actor, self.concurrent = actor, concurrent
        self.told_file = told.told_file(log_file)
        self.told_file.unlink(missing_ok=True)  # a file of the previous process, after a restart or a resume

    def ask(self, method: Callable[..., T], *args: Any) -> Ref[T]:  # type: ignore[override]
        ref: Ref[T] = self._send(1, method.__name__, args)
        return ref

    def ask_parts(self, num: int, method: Callable[..., Any], *args: Any) -> tuple[Ref[Any], ...]:  # type: ignore[override]
        return tuple(self._send(num, method.__name__, args))

    def _send(self, num: int, method: str, args: Sequence[Any]) -> Any:  # Any: a reference of Ray, or a list of them
        values = [get(arg) if isinstance(arg, LocalRef) else arg for arg in args]
        options: dict[str, Any] = {"num_returns": num}
        if method in self.concurrent:
            options["concurrency_group"] = method
        return self.actor.call.options(**options).remote(method, *values)

    def told(self) -> told.News:
        """Return what the role's process has told; nothing on another node, whose files are not here."""
        return told.read(self.told_file)

    def ping(self) -> Ref[int]:
        ref: Ref[int] = self.actor.ping.remote()
        return ref

    def uses(self) -> Ref[list[ProcessUse]]:
        ref: Ref[list[ProcessUse]] = self.actor.uses.remote()
        return ref

    def kill(self) -> None:
        ray.kill(self.actor)


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
