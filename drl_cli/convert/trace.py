"""Record the tensor operations of a policy, join the traces of two numbers of rows, and remove changes of tensors."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from drl_cli.types import Array

READS = ("numpy", "tolist", "__array__", "__dlpack__")
"""Functions with which Python reads the values of a tensor. The other functions that do so call an operation."""


class NotConverted(Exception):
    """Raised if a policy has no numpy form. The message gives the reason."""


class Value(NamedTuple):
    """The tensor that `Trace.facts` describes at this position."""

    at: int


class Rows(NamedTuple):
    """An integer that is `factor` times the number of rows."""

    factor: int


@dataclass(frozen=True)
class Fact:
    """A tensor of a trace.

    `kind` is "input", "weight" (a view of the parameter vector that begins at the element `start`), "constant" or
    "result" (of a call). `name` is that of an input. `shape` and `stride` contain `Rows`.
    """

    kind: str
    tensor: Tensor
    shape: tuple[int | Rows, ...]
    dtype: torch.dtype
    name: str = ""
    start: int = 0
    array: Array | None = None

    @classmethod
    def of(cls, kind: str, tensor: Tensor, **more: Any) -> "Fact":  # Any: the other fields
        return cls(kind, tensor, tuple(tensor.shape), tensor.dtype, **more)

    @property
    def cells(self) -> Array:
        cells = np.array([self.tensor.storage_offset()])
        for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True):
            cells = (cells[:, None] + stride * np.arange(size)).ravel()
        return cells

    def overlaps(self, other: "Fact") -> bool:
        """Whether a change of this tensor changes the other tensor."""
        is_same = _storage(self.tensor) == _storage(other.tensor)
        return is_same and len(np.intersect1d(self.cells, other.cells)) > 0


@dataclass(frozen=True)
class Call:
    """An operation of torch, or a call `rng.op(...)` of the policy's generator. `writes` are arguments that it changes.

    `args` has all arguments by name, with default values. In `args` and `results`, tensors are `Value`s.
    """

    op: str
    args: Mapping[str, Any]  # Any: values, numbers, torch's types, and lists of these
    results: tuple[Value | None, ...]
    defaults: Mapping[str, Any]  # Any: as `args`
    writes: tuple[str, ...] = ()

    @property
    def is_draw(self) -> bool:
        return self.op.startswith("rng.")


@dataclass(frozen=True)
class Trace:
    """The calls of a function, and its results by name."""

    calls: Sequence[Call]
    outputs: Mapping[str, Value]
    facts: Sequence[Fact]


def record(
    function: Callable[[], Mapping[str, Tensor]],
    inputs: Mapping[str, Tensor],
    weights: Sequence[Tensor],
    rng: "Draws",
) -> Trace:
    """Call a function of these inputs, of weights that are pieces of the parameter vector, and of a generator."""
    recorder = _Recorder(inputs, weights)
    rng._recorder = recorder
    has_fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # because its LSTM is one operation
    try:
        with torch.no_grad(), _NoReads(), recorder:
            outputs = function()
    finally:
        torch._C._set_mkldnn_enabled(has_fused)
        rng._recorder = None
    results = {name: recorder.value(tensor) for name, tensor in outputs.items()}
    if recorder.drawn:
        raise NotConverted("a random number is used outside of torch")
    return Trace(recorder.calls, results, recorder.facts)


class Draws(np.random.Generator):
    """A random generator whose draws become calls of a trace while `record` runs."""

    _recorder: "_Recorder | None" = None

    def __getattribute__(self, name: str) -> Any:  # Any: of any attribute
        method, recorder = super().__getattribute__(name), super().__getattribute__("_recorder")
        if recorder is None or name.startswith("_") or name == "bit_generator":
            return method

        def draw(*args: Any, **kwargs: Any) -> Any:  # Any: as the method's
            array = method(*args, **kwargs)
            if not isinstance(array, np.ndarray):
                raise NotConverted(f"rng.{name} returns {type(array).__name__}, not an array")
            recorder.draw(f"rng.{name}", {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}, array)
            return array

        return draw


class _NoReads(TorchFunctionMode):
    """Refuses functions that read a tensor's values, because a program can't know what Python does with the values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        if getattr(func, "__name__", "") in READS:
            raise NotConverted(f"Python reads a tensor's values: Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Notes every operation that is called while this mode is active."""

    def __init__(self, inputs: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.facts: list[Fact] = []
        self.drawn: dict[int, Array] = {}  # random numbers that torch does not know yet, by the index of their call
        self._values: dict[int, Value] = {}
        starts = np.cumsum([0, *(piece.numel() for piece in weights)]).tolist()
        self._weights = list(zip(weights, starts, strict=False))
        for name, tensor in inputs.items():
            self._new(Fact.of("input", tensor, name=name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        schema, kwargs = func._schema, kwargs or {}
        names = [argument.name for argument in schema.arguments]
        defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        writes = tuple(e.name for e in schema.arguments if e.alias_info and e.alias_info.is_write and e.name in given)
        bound = {name: self._noted(value) for name, value in {**defaults, **given}.items()}
        out = func(*args, **kwargs)
        outs = out if isinstance(out, tuple | list) else (out,)
        results = tuple(self._result(each) if isinstance(each, Tensor) else None for each in outs)
        self.calls.append(Call(schema.name.split("::")[1], bound, results, defaults, writes))
        return out

    def draw(self, op: str, args: Mapping[str, Any], array: Array) -> None:  # Any: shapes, types, numbers
        self.drawn[len(self.calls)] = array
        self.calls.append(Call(op, args, (), {}))

    def value(self, tensor: Tensor) -> Value:
        """Return the value of a tensor. A tensor that no call has returned is a view of a weight, or a constant."""
        if (known := self._values.get(id(tensor))) is not None:
            return known
        for i, array in self.drawn.items():
            if tensor.data_ptr() == array.ctypes.data and tensor.shape == array.shape and tensor.is_contiguous():
                del self.drawn[i]
                value = self._new(Fact.of("result", tensor))
                self.calls[i] = replace(self.calls[i], results=(value,))
                return value
        for piece, start in self._weights:
            offset = tensor.storage_offset() - piece.storage_offset()
            if _storage(tensor) == _storage(piece) and 0 <= offset < max(piece.numel(), 1):
                return self._new(Fact.of("weight", tensor, start=start + offset))
        if any(_storage(fact.tensor) == _storage(tensor) for fact in self.facts if fact.kind != "constant"):
            raise NotConverted("a view of a tensor was made outside of torch's operations")
        with torch._C.DisableTorchFunction():
            return self._new(Fact.of("constant", tensor, array=tensor.detach().numpy().copy()))

    def _new(self, fact: Fact) -> Value:
        value = self._values[id(fact.tensor)] = Value(len(self.facts))
        self.facts.append(fact)
        return value

    def _result(self, tensor: Tensor) -> Value:
        known = self._values.get(id(tensor))
        return self._new(Fact.of("result", tensor)) if known is None else known

    def _noted(self, value: Any) -> Any:  # Any: an argument
        if isinstance(value, Tensor):
            return self.value(value)
        return [self._noted(each) for each in value] if isinstance(value, list | tuple) else value


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def merged(one: Trace, two: Trace, rows: tuple[int, int]) -> Trace:
    """Merge the traces of a function with `rows[0]` and with `rows[1]` rows. All else has to differ, too.

    An integer that is the same multiple of the number of rows in both traces becomes a `Rows`. Raise NotConverted if
    anything else differs.
    """
    if len(one.calls) != len(two.calls) or len(one.facts) != len(two.facts) or one.outputs != two.outputs:
        raise NotConverted("its operations depend on values or on the number of rows")

    def same(a: Any, b: Any, where: str) -> Any:  # Any: parts of traces
        if type(a) is int and type(b) is int and a != b and a % rows[0] == b % rows[1] == 0:
            if a // rows[0] == b // rows[1]:
                return Rows(a // rows[0])
        elif isinstance(a, list | torch.Size) or type(a) is tuple:
            if type(a) is type(b) and len(a) == len(b):
                return [same(x, y, where) for x, y in zip(a, b, strict=True)]
        elif isinstance(a, np.ndarray):
            if isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True):
                return b
        elif type(a) is type(b) and (a == b or a != a):
            return b
        raise NotConverted(f"{where}: something depends on values, on weights or on random numbers")

    calls, facts = [], []
    for a, b in zip(one.calls, two.calls, strict=True):
        if (a.op, a.args.keys(), a.results) != (b.op, b.args.keys(), b.results):
            raise NotConverted("its operations depend on values or on the number of rows")
        calls.append(replace(b, args={name: same(a.args[name], b.args[name], a.op) for name in b.args}))
    for x, y in zip(one.facts, two.facts, strict=True):
        same((x.kind, x.dtype, x.name, x.start), (y.kind, y.dtype, y.name, y.start), "a tensor")
        facts.append(
            replace(y, shape=tuple(same(x.shape, y.shape, "a shape")), array=same(x.array, y.array, "a constant"))
        )
    return Trace(calls, two.outputs, facts)


def without_writes(trace: Trace) -> Trace:
    """Replace each operation that changes a tensor by the operation that returns a new tensor.

    Later calls use the new tensor. Raise NotConverted if the changed tensor is no result of a call, or if a later call
    uses another tensor with the same memory.
    """
    calls: list[Call] = []
    facts, latest = list(trace.facts), dict[Value, Value]()
    for i, call in enumerate(trace.calls):
        args = {name: renamed(value, latest) for name, value in call.args.items()}
        results, op = call.results, call.op
        if call.writes:
            if len(call.writes) > 1:
                raise NotConverted(f"{op} changes several tensors")
            target = call.args[call.writes[0]]
            fact = trace.facts[target.at]
            later = set(values([each.args for each in trace.calls[i + 1 :]])) | set(trace.outputs.values())
            before = later & {*values([each.args for each in trace.calls[: i + 1]]), *_results(trace.calls[:i])}
            old = [trace.facts[value.at] for value in before - {target}]
            old += [each for each in trace.facts if each.kind != "result"]
            if any(fact.overlaps(each) for each in old):
                raise NotConverted(f"{op} changes memory that is used elsewhere")
            new = latest[target] = Value(len(facts))
            facts.append(fact)
            results, op = (new,), op.removesuffix("_")
            if call.writes == ("out",):
                del args["out"]
        calls.append(replace(call, op=op, args=args, results=results, writes=()))
    return Trace(calls, {name: latest.get(value, value) for name, value in trace.outputs.items()}, facts)


def without_reshapes(trace: Trace, reshapes: Collection[str]) -> Trace:
    """Reshape the first of several values with the same elements, and use such a value again if it has the shape."""
    calls: list[Call] = []
    names, groups = dict[Value, Value](), dict[Value, list[Value]]()
    for call in trace.calls:
        args = {name: renamed(value, names) for name, value in call.args.items()}
        (result, *_) = call.results or (None,)
        if call.op in reshapes and result is not None:
            group = groups.setdefault(args["self"], [args["self"]])
            groups[result], args["self"] = group, group[0]
            shape = trace.facts[result.at].shape
            equal = [value for value in group if trace.facts[value.at].shape == shape]
            if equal:
                names[result] = equal[0]
                continue
            group.append(result)
        calls.append(replace(call, args=args))
    return replace(trace, calls=calls, outputs={key: names.get(value, value) for key, value in trace.outputs.items()})


def needed(trace: Trace) -> Trace:
    """Leave out the calls whose results nobody uses, but no draw of random numbers."""
    used, kept = set(trace.outputs.values()), list[Call]()
    for call in reversed(trace.calls):
        if call.is_draw or used & {*call.results}:
            used |= set(values(call.args))
            kept.append(call)
    return replace(trace, calls=kept[::-1])


def values(part: Any) -> Iterator[Value]:  # Any: arguments
    """Yield every value in the arguments of a call, or in several of them."""
    if isinstance(part, Value):
        yield part
    elif isinstance(part, Mapping):
        yield from values(list(part.values()))
    elif isinstance(part, list | tuple):
        for each in part:
            yield from values(each)


def renamed(part: Any, names: Mapping[Value, Value]) -> Any:  # Any: an argument
    """Return an argument with other values."""
    if isinstance(part, Value):
        return names.get(part, part)
    return [renamed(each, names) for each in part] if isinstance(part, list) else part


def _results(calls: Sequence[Call]) -> Iterator[Value]:
    return (result for call in calls for result in call.results if result is not None)
