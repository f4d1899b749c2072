"""Context: the settings of updates, such as the device, and functions that compile or replay updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from drl_cli.chains.process_group import ProcessGroup
from drl_cli.errors import Refused
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.optim.products import BFloat16, Products
from drl_cli.utils.clock import waiting_for_compiler
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.machine import library_folder
from drl_cli.utils.run_clock import RunClock
from drl_cli.utils.torch_ops import keep_headers_in

if TYPE_CHECKING:
    from drl_cli.chains.replays import Replays
    from drl_cli.chains.when import When

Function = TypeVar("Function", bound=Callable[..., Any])  # Any: arguments and results of any type
_CODE_NUMBERS = count()  # of the copies that `_with_own_code` made


@dataclass(frozen=True)
class Context:
    """The settings that all updates of an algorithm share.

    - `device`: The device of all tensors.
    - `group`: The trainers that make each update together. Each trainer has some rows of the batch.
    - `skips`: An update is skipped if its loss or gradient is not finite.
    - `products`: The functions for matrix products, which set the library and the precision.
    - `compiles`: torch.compile compiles each loss function together with its gradient.
    - `chain`: Says when a run compiles its whole updates (drl_cli.chains.when). With None, they are not compiled.
    - `replays`: The tensor operations of one update are recorded, and later updates repeat them without the update's
      Python code (drl_cli.chains.replays).
    - `recorded`: The Replays object of each function that is replayed.
    - `optimizer`: The options of the optimizer, such as its name.
    - `clock`: The length of the run, and its unit: environment steps or updates. Schedules use it.
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
        """Whether compiled functions run as CUDA graphs, which needs a GPU and TORCHINDUCTOR_CUDAGRAPHS=1."""
        from torch._inductor import config

        return self.compiles and self.device.type == "cuda" and bool(config.triton.cudagraphs)

    def compiled(self, function: Function) -> Function:
        """Return the function compiled by torch.compile. If the context's `compiles` is False, return it unchanged.

        The compiled function takes no keyword arguments. It may only compute with tensors, and may not draw random
        numbers, average over the group of trainers or call `.item()`. torch compiles the function at the first call,
        and again if the type or shape of an argument changes. A method is also compiled again if a non-tensor attribute
        of its object changes. Compiled code does not notice the change of a global variable. A call raises Refused if
        torch cannot put the whole function into one graph. The message names the line.
        """
        if not self.compiles:
            return function
        try:
            keep_headers_in(library_folder().path)
        except OSError as error:
            raise Refused(f"trainer.compile=true: {error}") from error
        # The option makes compiled code round like torch without compilation. Any: options of torch
        options: dict[str, Any] = {"emulate_precision_casts": True}
        if hasattr(torch.compiler, "skip_guard_on_globals_unsafe"):  # torch 2.6 has no guard filters
            options["guard_filter_fn"] = _kept_guards
        program: Callable[..., Any] = torch.compile(_with_own_code(function), fullgraph=True, options=options)

        def call(*args: Any) -> Any:  # Any: arguments and results of any type
            try:
                with waiting_for_compiler():  # torch.compile compiles inside some calls
                    return program(*args)
            except Exception as error:
                is_from_compiler = type(error).__module__.startswith("torch._dynamo")
                if not is_from_compiler:
                    raise
                raise Refused(f"trainer.compile=true: {_graph_break(error)}") from error

        return cast(Function, call)

    def chained(self, step: Function, owner: Any, skipped: Callable[[], Any] = dict) -> Function:  # Any: any type
        """Return a function that makes the gradient step `step(columns)`, and that may replay or compile this step.

        `chain_of` does the same for a whole update, and says when the function returns `skipped()` (default: {}).
        `columns` has the values of a minibatch by name. If a value is no tensor, such as a stack of images, Python
        makes the step. The algorithm `owner` has the attribute `optimizer`, which the step has to call. The step may
        read other tensors too, if they are only changed in place.
        """
        if self.chain is None and not self.replays:
            return step

        # A replay returns tensors, but sets no attribute. So the gradient's norm is returned, and `call` stores it.
        def update(columns: Any, counts: Any = ()) -> tuple[Any, Tensor | None]:
            result = step(columns)
            return result, owner.optimizer.norm

        def without_norm() -> tuple[Any, None]:
            return skipped(), None

        chain = self.chain_of(update, owner, without_norm)

        def call(columns: Any) -> Any:  # Any: columns of a batch, by name
            is_recordable = type(columns) is dict and all(isinstance(x, torch.Tensor) for x in columns.values())
            if not is_recordable:  # a column is a stack of images or a dict of tensors
                return step(columns)
            result, owner.optimizer.norm = chain(columns)
            return result

        return cast(Function, call)

    def chain_of(self, update: Callable[[Any, Any], Any], owner: Any, skipped: Callable[[], Any]) -> Callable[..., Any]:
        """Return a function that makes the update `update(columns, counts)` of the algorithm `owner`.

        `columns` has the tensors of a batch by name. `counts` has the integers on which the update depends, such as
        the number of earlier updates. The settings of this context decide whether the function replays the update,
        compiles the update, or only calls `update`. If a loss or gradient is not finite in a compiled update, or in one
        that is recorded for compilation, the function undoes the update and returns `skipped()`. Otherwise, `update`
        raises NotFinite.
        """
        from drl_cli.chains.chain import Chain
        from drl_cli.chains.replays import Replays

        plain: Callable[[Any, Any], Any] = update  # what runs if the update is not compiled
        # A replay cannot skip an update, and cannot contain a function that torch.compile has compiled.
        if self.replays and not self.skips and not self.compiles:
            replays = Replays(update, owner)
            self.recorded.append(replays)
            plain = replays
        if self.chain is None:
            return plain
        return Chain(update, owner, when=self.chain, skipped=skipped, plain=plain, least=self.group.least)

    def randn(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Return standard normal noise `[rows, size]` for this trainer's rows of the batch.

        Every trainer draws the noise for the rows of all trainers and keeps its own rows. With generators of equal
        seeds, two trainers use the same noise as one trainer with all rows. `generator` must be on `device`.
        """
        noise = torch.randn(self.group.size * rows, size, generator=generator, device=self.device)
        return noise if self.group.size == 1 else noise[self.group.rank * rows :][:rows]

    def rand(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Return uniform noise in [0, 1), `[rows, size]`, for this trainer's rows of the batch, drawn as in `randn`."""
        noise = torch.rand(self.group.size * rows, size, generator=generator, device=self.device)
        return noise if self.group.size == 1 else noise[self.group.rank * rows :][:rows]


def _graph_break(error: Exception) -> str:
    """Return an error message with the line of code that torch cannot compile, and with torch's reason."""
    reason = str(error).strip().splitlines()[0]
    stack = getattr(error, "real_stack", None) or []
    outside_torch = [frame for frame in stack if "/torch/" not in frame.filename]
    if not outside_torch:
        return reason
    innermost = outside_torch[-1]
    return f"{innermost.filename}:{innermost.lineno}: {reason} ({innermost.line})"


def _kept_guards(guards: Sequence[Any]) -> list[bool]:  # Any: GuardFilterEntry of torch
    """Return, for each guard, whether torch.compile keeps it.

    Before each call, torch checks its guards, and compiles the function again if one of them fails. Guards of global
    names are not kept, because no global name gets another value. Guards of tensors that are attributes of the method's
    object are not kept, because these tensors are only changed in place. These checks would take a fifth of the time of
    a small update.
    """

    def is_kept(guard: Any) -> bool:  # L['self'] is torch's name of the method's object
        is_own_tensor = "L['self']" in guard.name and guard.guard_type == "TENSOR_MATCH"
        return not (guard.is_global or is_own_tensor)

    return [is_kept(guard) for guard in guards]


def _with_own_code(function: Any) -> Any:  # Any: a function or method of any type
    """Return a copy of a function or method whose code object has a unique name.

    torch.compile remembers the sizes of a function's arguments by the file, line and name of the code. If the same
    method of a second object had arguments of other sizes, torch would compile slower code for arguments of any size.
    The unique name prevents this.
    """
    if isinstance(function, MethodType):
        return MethodType(_with_own_code(function.__func__), function.__self__)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_CODE_NUMBERS)}")
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
