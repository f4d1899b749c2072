"""Context: the device, the group of trainers and the other settings that updates need, and how updates run."""

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
    """The settings of an update: device, group of trainers, matrix products, options of the optimizer.

    - `skips`: Updates whose loss or gradient is not finite are skipped.
    - `compiles`: torch.compile compiles each loss function together with its gradient.
    - `chain`: When whole updates are compiled (drl_cli.chains.when), or None for never.
    - `replays`: Updates run as lists of tensor operations (drl_cli.chains.replays), which `recorded` keeps.
    - `clock`: Counts the position of the run, for schedules.
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
        """Return a function that torch.compile compiles at the first call. Without `compiles`, return it unchanged.

        The function may only compute with tensors: no random numbers, no averages over the group, no `.item()`. If an
        argument's type or shape, or an attribute of the object that is no tensor, changes, torch compiles the function
        again. The compiled function raises Refused, with the line, if torch cannot put the whole function into one
        graph.
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

        The step has to call `owner.optimizer`. Between calls, all tensors that the step reads, except its columns, may
        only be changed in place. If a step is skipped, the function returns `skipped()`.
        """
        if self.chain is None and not self.replays:
            return step

        def update(columns: Any, counts: Any = ()) -> tuple[Any, Tensor | None]:
            return step(columns), owner.optimizer.norm

        chain = self.chain_of(update, owner, lambda: (skipped(), None))

        def call(columns: Any) -> Any:  # Any: columns of a batch, by name
            if not (type(columns) is dict and all(isinstance(x, torch.Tensor) for x in columns.values())):
                return step(columns)  # columns with image stacks or dicts of tensors are not recorded
            result, owner.optimizer.norm = chain(columns)
            return result

        return cast(Function, call)

    def chain_of(self, update: Callable[[Any, Any], Any], owner: Any, skipped: Callable[[], Any]) -> Callable[..., Any]:
        """Return a function that makes the update `update(columns, counts)` of `owner`.

        The settings of this context decide whether the function replays the update, compiles it, or only calls it. If
        an update is skipped because a value is not finite, the function returns `skipped()`.
        """
        from drl_cli.chains.chain import Chain
        from drl_cli.chains.replays import Replays

        plain: Callable[[Any, Any], Any] = update
        # A record would not see the kernels of compiled functions, nor could it skip an update.
        if self.replays and not self.skips and not self.compiles:
            self.recorded.append(replays := Replays(update, owner))
            plain = replays
        return plain if self.chain is None else Chain(update, owner, self.chain, skipped, plain, self.group.least)

    def randn(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Return this trainer's rows `[rows, size]` of standard normal noise that is drawn for all trainers.

        All trainers need generators with equal seeds. Two trainers then use the same noise as one trainer would.
        """
        return self._own_rows(torch.randn(self.group.size * rows, size, generator=generator, device=self.device))

    def rand(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Return uniform random numbers in [0, 1), `[rows, size]`: this trainer's rows, as in `randn`."""
        return self._own_rows(torch.rand(self.group.size * rows, size, generator=generator, device=self.device))

    def _own_rows(self, drawn: Tensor) -> Tensor:
        rows = len(drawn) // self.group.size
        return drawn[self.group.rank * rows : (self.group.rank + 1) * rows]


def _graph_break(error: Exception) -> str:
    """Return a message with the line that torch cannot compile, and with torch's reason."""
    reason = str(error).strip().splitlines()[0]
    frames = [frame for frame in getattr(error, "real_stack", None) or [] if "/torch/" not in frame.filename]
    if not frames:
        return reason
    return f"{frames[-1].filename}:{frames[-1].lineno}: {reason} ({frames[-1].line})"


def _kept_guards(guards: Sequence[Any]) -> list[bool]:  # Any: GuardFilterEntry of torch
    """Return, for each guard, whether torch.compile checks it before each call. A guard is a condition for a recompile.

    Guards of globals, and of tensors that are attributes of the method's object, are not checked. They are not needed,
    because no function of a module is replaced and these tensors are only changed in place. Checking them takes a fifth
    of the time of a small update.
    """
    own = "L['self']"
    return [not (guard.is_global or (own in guard.name and guard.guard_type == "TENSOR_MATCH")) for guard in guards]


def _with_own_code(function: Any) -> Any:  # Any: a function or method of any type
    """Return a copy of a function or method whose code object has a unique name.

    torch remembers the sizes of arguments by the file, line and name of the code. When a second object's method has
    arguments of other sizes, torch would compile slower code for any size. The unique name prevents this.
    """
    if isinstance(function, MethodType):
        return MethodType(_with_own_code(function.__func__), function.__self__)
    names = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return FunctionType(function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}"), *names)
