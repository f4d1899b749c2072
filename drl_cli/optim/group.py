"""ProcessGroup: the learners that go through the same updates together, each with its rows of every batch."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.optim.products import BFloat16, Products
from drl_cli.utils.lazy import torch

Function = TypeVar("Function", bound=Callable[..., Any])  # Any: whatever an algorithm computes


class PeerLost(Exception):
    """Another learner of the group is gone, or did not take part in time."""


class ProcessGroup:
    """Learner `rank` of `size`. One of several has to `join` before its first update; one alone has nobody to ask.

    No member waits longer than `timeout_s` for another, then or later.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout_s: float = 300.0) -> None:
        self.rank, self.size, self.timeout = rank, size, datetime.timedelta(seconds=timeout_s)
        self.store: Any = None  # Any: torch.distributed.TCPStore, which torch's type stubs leave out
        self.broken: PeerLost | None = None

    def listen(self, host: str) -> int:
        """Wait for the others at a free port of this host, for rank 0; returns the port."""
        self.store = self._store(host, 0)
        port: int = self.store.port
        return port

    def join(self, host: str, port: int, device: "torch.device") -> None:
        """Meet the others where rank 0 listens; raises PeerLost when they do not come."""
        try:
            if self.store is None:
                self.store = self._store(host, port)
            torch.distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
            )
        except RuntimeError as error:
            raise PeerLost(f"learner {self.rank} of {self.size} found no group: {error}") from error

    def mean_(self, tensor: "torch.Tensor") -> None:
        """Replace a tensor by its mean over the group, in place; raises PeerLost when a member is or was missing."""
        if self.size > 1:
            self._all_reduce(tensor, torch.distributed.ReduceOp.SUM)
            tensor /= self.size

    def spread(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """The largest less the smallest value over the group, of each element; raises PeerLost as `mean_`."""
        ends = torch.stack([tensor, -tensor])
        if self.size > 1:
            self._all_reduce(ends, torch.distributed.ReduceOp.MAX)
        return ends.sum(0)

    def _all_reduce(self, tensor: "torch.Tensor", operation: Any) -> None:  # Any: a torch.distributed.ReduceOp
        if self.broken:
            raise self.broken
        try:
            torch.distributed.all_reduce(tensor, operation)
        except RuntimeError as error:
            self.broken = PeerLost(f"learner {self.rank} of {self.size} lost another: {error}")
            raise self.broken from error

    def _store(self, host: str, port: int) -> Any:  # Any: as above
        is_master = self.rank == 0
        return torch.distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, None, is_master, self.timeout, wait_for_workers=False
        )


@dataclass(frozen=True)
class Context:
    """Where an algorithm learns, with whom, by which products and which optimizer.

    It `skips` updates that are not finite, or makes them all; it `compiles` what is `compiled`, or leaves it as it is.
    Of sequences the first `burn_in` steps are not learned from.
    """

    device: "torch.device"
    group: ProcessGroup = field(default_factory=ProcessGroup)
    skips: bool = False
    products: Products = field(default_factory=Products)
    compiles: bool = False
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    total_env_steps: int = 1
    burn_in: int = 0

    @property
    def is_bf16(self) -> bool:
        """Whether products are rounded to bfloat16."""
        return isinstance(self.products, BFloat16)

    def compiled(self, function: Function) -> Function:
        """A function of tensors alone, which torch.compile makes into one program when it is first called.

        Not what draws random numbers, averages over the group or asks for a value. Its arguments are checked in every
        call, and of its object the values that are no tensors.
        """
        if not self.compiles:
            return function
        options: dict[str, Any] = {"emulate_precision_casts": True}  # bf16 is to round. Any: as torch has it
        if hasattr(torch.compiler, "skip_guard_on_globals_unsafe"):  # torch 2.6 has no such filters
            options["guard_filter_fn"] = _checked
        return cast(Function, torch.compile(_with_own_code(function), options=options))

    def randn(self, rows: int, size: int, generator: "torch.Generator") -> "torch.Tensor":
        """Standard normal noise `[rows, size]`: for these rows what one learner alone would draw for all rows.

        Every member's generator has to have the same seed.
        """
        return self._mine(torch.randn(self.group.size * rows, size, generator=generator, device=self.device))

    def rand(self, rows: int, size: int, generator: "torch.Generator") -> "torch.Tensor":
        """Uniform numbers in [0, 1) `[rows, size]`, drawn as by `randn`."""
        return self._mine(torch.rand(self.group.size * rows, size, generator=generator, device=self.device))

    def _mine(self, drawn: "torch.Tensor") -> "torch.Tensor":
        """Of what is drawn for the rows of all members those of this one."""
        rows = len(drawn) // self.group.size
        return drawn[self.group.rank * rows : (self.group.rank + 1) * rows]


def _checked(guards: Sequence[Any]) -> list[bool]:  # Any: GuardFilterEntry of torch
    """Which guards stay: those of globals and of an object's own tensors took a fifth of a small update.

    Nobody rebinds a module's functions, and a learner's tensors are changed in place.
    """
    own = "L['self']"
    return [not (guard.is_global or (own in guard.name and guard.guard_type == "TENSOR_MATCH")) for guard in guards]


def _with_own_code(function: Any) -> Any:  # Any: as Function
    """The same function or method, compiled apart: torch keeps what it has compiled for all who share the code."""
    if isinstance(function, MethodType):
        return MethodType(_with_own_code(function.__func__), function.__self__)
    names = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return FunctionType(function.__code__.replace(), *names)
