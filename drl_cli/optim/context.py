"""Context: what parameters, gradients and optimizers use besides their options, and how updates run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from drl_cli.errors import Refused
from drl_cli.optim.group import ProcessGroup
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.optim.products import BFloat16, Products
from drl_cli.optim.schedules import RunClock
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from drl_cli.chains.replays import Replays
    from drl_cli.chains.when import When

Function = TypeVar("Function", bound=Callable[..., Any])  # Any: arguments and results of any type
_NUMBERS = count()


@dataclass(frozen=True)
class Context:
    """What an update uses: device, group of trainers, matrix products, options of the optimizer.

    If `replays`, updates run as lists of tensor operations (drl_cli.chains.replays), which `recorded` keeps. If
    `skips`, updates whose loss or gradient is not finite are skipped. `chain` tells when whole updates are compiled;
    None: never. If `compiles`, torch.compile compiles each loss together with its gradient.
    `clock` is what the position of the run is counted in, and `total_env_steps` is its last position, for schedules.
    """

    device: torch.device
    group: ProcessGroup = field(default_factory=ProcessGroup)
    skips: bool = False
    products: Products = field(default_factory=Products)
    compiles: bool = False
    chain: When | None = None
    replays: bool = False
    recorded: list[Replays] = field(default_factory=list)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    clock: RunClock = field(default_factory=RunClock)

    @property
    def total_env_steps(self) -> int:
        """The planned length of the run in environment steps, or in updates if the run has no workers."""
        return self.clock.total

    @property
    def is_bf16(self) -> bool:
        """Whether matrix products are computed in bfloat16."""
        return isinstance(self.products, BFloat16)

    @property
    def has_graphs(self) -> bool:
        """Whether compiled functions run as CUDA graphs, which TORCHINDUCTOR_CUDAGRAPHS=1 asks for."""
        from torch._inductor import config

        return self.compiles and self.device.type == "cuda" and bool(config.triton.cudagraphs)

    def compiled(self, function: Function) -> Function:
        """Return the function, which torch.compile compiles at the first call; if not `compiles`, return it unchanged.

        The function may only compute with tensors: no random numbers, no averaging over the group, no `.item()`. In
        every call, torch checks whether the arguments, or the object's attributes that are not tensors, have changed.
        If they have, torch compiles the function again. Raise Refused, with the line, if the function does not fit into
        one graph.
        """
        if not self.compiles:
            return function
        options: dict[str, Any] = {"emulate_precision_casts": True}  # round as eager torch. Any: options of torch
        if hasattr(torch.compiler, "skip_guard_on_globals_unsafe"):  # torch 2.6 has no guard filters
            options["guard_filter_fn"] = _kept_guards
        program: Callable[..., Any] = torch.compile(_with_own_code(function), fullgraph=True, options=options)

        def call(*args: Any) -> Any:  # Any: arguments and results of any type
            try:
                return program(*args)
            except Exception as error:
                if not type(error).__module__.startswith("torch._dynamo"):
                    raise
                raise Refused(f"trainer.compile=true: {_graph_break(error)}") from error

        return cast(Function, call)

    def chained(self, step: Function, owner: Any, skipped: Callable[[], Any] = dict) -> Function:  # Any: any type
        """Return a function that makes the gradient step `step(columns)` of `owner`, as `chain_of` makes an update.

        The step calls `owner.optimizer`. All other tensors that the step reads have to be changed in place.
        """
        if self.chain is None and not self.replays:
            return step

        def update(columns: Any, counts: Any = ()) -> tuple[Any, Tensor | None]:
            return step(columns), owner.optimizer.norm

        chain = self.chain_of(update, owner, lambda: (skipped(), None))

        def call(columns: Any) -> Any:  # Any: tensors by name, but perhaps stacks of images or parts of observations
            if not (type(columns) is dict and all(isinstance(x, torch.Tensor) for x in columns.values())):
                return step(columns)
            result, owner.optimizer.norm = chain(columns)
            return result

        return cast(Function, call)

    def chain_of(self, update: Callable[[Any, Any], Any], owner: Any, skipped: Callable[[], Any]) -> Callable[..., Any]:
        """Return a function that makes the update `update(columns, counts)` of `owner`.

        This context decides whether the function replays the update, compiles it, or only calls it. If an update is
        skipped because a value is not finite, the function returns `skipped()`.
        """
        from drl_cli.chains.chain import Chain
        from drl_cli.chains.replays import Replays

        plain: Callable[[Any, Any], Any] = update
        has_kernels = self.compiles  # those of a compiled function, which a record would not see
        if self.replays and not self.skips and not has_kernels:
            self.recorded.append(replays := Replays(update, owner))
            plain = replays
        return plain if self.chain is None else Chain(update, owner, self.chain, skipped, plain, self.group.least)

    def randn(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Return standard normal noise `[rows, size]`, which is this trainer's slice of noise drawn for all trainers.

        All trainers need generators with equal seeds. Then two trainers use the same noise as one trainer would.
        """
        return self._own_rows(torch.randn(self.group.size * rows, size, generator=generator, device=self.device))

    def rand(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Return uniform random numbers in [0, 1), `[rows, size]`, divided among the trainers as by `randn`."""
        return self._own_rows(torch.rand(self.group.size * rows, size, generator=generator, device=self.device))

    def _own_rows(self, drawn: Tensor) -> Tensor:
        rows = len(drawn) // self.group.size
        return drawn[self.group.rank * rows : (self.group.rank + 1) * rows]


def _graph_break(error: Exception) -> str:
    """Return the line that torch can't compile, and torch's reason."""
    reason = str(error).strip().splitlines()[0]
    own = [frame for frame in getattr(error, "real_stack", None) or [] if "/torch/" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}: {reason} ({own[-1].line})" if own else reason


def _kept_guards(guards: Sequence[Any]) -> list[bool]:  # Any: GuardFilterEntry of torch
    """Return, for each guard, whether torch.compile checks the guard.

    Guards of globals and of the tensors of the method's object are not checked: the checks took a fifth of the time of
    a small update. These guards are not needed, because no function of a module is ever replaced, and the tensors are
    only changed in place.
    """
    own = "L['self']"
    return [not (guard.is_global or (own in guard.name and guard.guard_type == "TENSOR_MATCH")) for guard in guards]


def _with_own_code(function: Any) -> Any:  # Any: a function or method of any type
    """Copy a function or method with a code object that has its own name.

    torch caches compiled programs by code object, and compares sizes of tensors by the file, line and name of the code.
    Without its own name, the second function of a program is compiled for tensors of any size.
    """
    if isinstance(function, MethodType):
        return MethodType(_with_own_code(function.__func__), function.__self__)
    names = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return FunctionType(function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}"), *names)
