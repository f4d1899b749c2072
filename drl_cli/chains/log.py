"""Log: records the tensor operations of an update, while the update runs, as the source of a Python function.

    log = Log(counts)
    with log:
        for column in batch.values():
            log.input(column)
        result = update(batch, log.counts)   # runs as always, and changes its tensors
    log.finish(results)                      # the tensors that the update returned
    function = log.function()
    results = function(*batch.values())      # makes the next update

The function calls the same operations with the same tensors, so it computes the same bits. It takes about half of the
time, because it leaves out autograd, modules and the update's other Python code. A `Tape` differs from a log: it
records a graph for a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from drl_cli.chains import operations
from drl_cli.chains.bindings import binding
from drl_cli.chains.memory import Unreadable
from drl_cli.chains.recorder import Recorder

aten = torch.ops.aten


class _Line(NamedTuple):
    """A line `outs = text` of the function. `uses` has the names of the tensors in `text`."""

    outs: Sequence[str]
    text: str
    uses: frozenset[str]
    is_tuple: bool = False
    has_effect: bool = False


class Log(Recorder):  # type: ignore[no-untyped-call]
    """Records the operations of one update, and makes a Python function of them. The module shows an example."""

    wants_plain = False

    def __init__(self, counts: Any = ()) -> None:  # Any: a NamedTuple of integers
        super().__init__(counts)
        self.inputs: list[str] = []
        self.scalars: list[Callable[[Any], float]] = []
        self.statics: dict[str, Tensor] = {}
        """Tensors that existed before the update, and constants, by name."""
        self._values: dict[str, Any] = {}  # Any: functions and constants that the lines name
        self._lines: list[_Line] = []
        self._results: Sequence[str] = ()
        self._names: dict[Any, str] = {}  # names of tensors, by storage, offset, shape, stride and type
        self._storages: dict[int, tuple[str, Any, torch.dtype]] = {}  # name, offset and type of one tensor, by storage
        self._written: set[int] = set()
        self._kept: list[Tensor] = []  # keeps all tensors, so that no new tensor gets the address of an old one

    def input(self, tensor: Tensor) -> None:
        """Note that this tensor, such as a column of the batch, is an argument of the function."""
        self.inputs.append(self._new("x", tensor))

    def scalar(self, compute: Callable[[Any], float]) -> Tensor:
        """Return `compute(counts)` as a float64 tensor without dimensions, which is an argument of the function."""
        with _disable_current_modes():
            tensor = torch.tensor(compute(self._counts), dtype=torch.float64)
        self.scalars.append(compute)
        self.input(tensor)
        return tensor

    def effect(self, function: Callable[[Tensor], None], tensor: Tensor) -> None:
        """Call a function that changes the tensor by a message to other trainers, now and in every replay."""
        with _disable_current_modes():  # otherwise this log would record what it does itself
            name, called = self._name(tensor), self._value(function)
            self._write([tensor])
            self._lines.append(_Line((), f"{called}({name})", frozenset([name]), has_effect=True))
            function(tensor)

    def require(self, condition: Tensor) -> None:
        """Give up the record, because a replay cannot be undone if the condition does not hold."""
        self.fail("the update has to be undone if it is not finite")

    def finish(self, results: Sequence[Tensor]) -> None:
        """Note the tensors that the function has to return, and free the other tensors of the recorded update."""
        if self.reason is None:
            with self.guarded("its results"):
                self._results = [self._name(tensor) for tensor in results]
        self._kept, self._storages, self._names = [], {}, {}

    def source(self) -> str:
        """Return the source of the function. Every tensor is deleted after its last use."""
        lines = self._needed()
        last = {name: i for i, line in enumerate(lines) for name in (*line.outs, *line.uses)}
        ends: dict[int, list[str]] = {}
        for name, i in last.items():
            if name not in self.statics and name not in self._results and name != "_":
                ends.setdefault(i, []).append(name)
        texts = [f"def replay({', '.join(self.inputs)}):"]
        for i, line in enumerate(lines):
            left = f"{', '.join(line.outs)}{',' if line.is_tuple else ''} = " if line.outs else ""
            texts.append(f"    {left}{line.text}")
            if i in ends:
                texts.append(f"    del {', '.join(ends[i])}")
        return "\n".join([*texts, f"    return ({''.join(f'{name}, ' for name in self._results)})"])

    def _needed(self) -> list[_Line]:
        """Return the lines that change a tensor, draw random numbers or send messages, or whose results are used."""
        used, needed = set(self._results), list[_Line]()
        for line in reversed(self._lines):
            if line.has_effect or not used.isdisjoint(line.outs):
                used |= line.uses
                needed.append(line)
        return needed[::-1]

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """Return the function. Its arguments are the inputs and scalars, in the order in which they were noted."""
        known: dict[str, Any] = {**self.statics, **self._values, "as_strided": torch.as_strided}
        exec(compile(self.source(), "<replay>", "exec"), known)
        function: Callable[..., tuple[Tensor, ...]] = known["replay"]
        return function

    def equals(self, other: Log) -> bool:
        """Return whether two logs give the same function, which uses the same memory and equal constants."""
        if self.source() != other.source() or self.statics.keys() != other.statics.keys():
            return False
        if any(self._values[name] != other._values[name] for name in self._values):
            return False
        return all(self._is_same(one, other.statics[name]) for name, one in self.statics.items())

    def _is_same(self, one: Tensor, two: Tensor) -> bool:
        if one.data_ptr() == two.data_ptr():
            return True
        is_written = operations.address(one) in self._written
        return not is_written and one.shape == two.shape and bool(torch.equal(one, two))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        text, uses, find = "", frozenset[str](), None
        if self.reason is None:
            with self.guarded(func):
                self._check(func, args)
                text, uses = self._call(args, kwargs)
                self._write(operations.written(func, args, kwargs))
                find = binding(func, args, kwargs)
        out = func(*args, **kwargs)
        if self.reason is None and find is not None:
            with self.guarded(func):
                with _disable_current_modes():
                    function = find(out)
                self._add(f"{self._value(function)}({text})", uses, func, args, kwargs, out)
        return out

    def _check(self, func: Any, args: Any) -> None:
        if self.refuse_values(func, args):
            return
        if "c10d" in func.namespace:
            self.fail("a call to other trainers")
        elif func is aten.as_strided.default and self._name(args[0]) in self.inputs:
            self.fail("a place in memory that Python computes")

    def _add(self, text: str, uses: frozenset[str], func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add a line to the function, unless the operation only makes views of tensors older than the update."""
        is_tuple = isinstance(out, tuple | list)
        outs = [self._out(result) for result in (out if is_tuple else [out])]
        is_seeded = torch.Tag.nondeterministic_seeded in func.tags
        has_effect = is_seeded or not outs or bool(operations.written(func, args, kwargs))
        if all(name == "_" for name in outs):
            outs = []
        if outs or has_effect:
            self._lines.append(_Line(outs, text, uses, is_tuple and bool(outs), has_effect))

    def _out(self, result: Any) -> str:
        if not isinstance(result, Tensor):
            return "_"
        self._kept.append(result)
        if self._key(result) in self._names:
            return "_"
        source = self._storages.get(operations.address(result))
        if source is not None and source[0] in self.statics:
            return "_"  # a view of a static tensor is static, too
        return self._new("t", result)

    def _call(self, args: Any, kwargs: Any) -> tuple[str, frozenset[str]]:
        """Return the arguments of an operation as Python source, and the names of the tensors in this source."""
        uses: set[str] = set()

        def source(value: Any) -> str:
            if isinstance(value, Tensor):
                uses.add(name := self._name(value))
                return name
            if isinstance(value, list | tuple):
                return f"[{', '.join(map(source, value))}]"
            if value is None or type(value) in (bool, int, str):
                return repr(value)
            if type(value) is float:
                return repr(value) if abs(value) < float("inf") else f'float("{value}")'
            return self._value(value)

        texts = [source(value) for value in args] + [f"{name}={source(value)}" for name, value in kwargs.items()]
        return ", ".join(texts), frozenset(uses)

    def _value(self, value: Any) -> str:
        for name, known in self._values.items():
            if known is value:
                return name
        name = f"c{len(self._values)}"
        self._values[name] = value
        return name

    def _write(self, tensors: Sequence[Tensor]) -> None:
        self._written |= {operations.address(tensor) for tensor in tensors}

    def _name(self, tensor: Tensor) -> str:
        """Return the name under which the function's lines know a tensor.

        A tensor without a name gets one: as a static tensor if its memory is older than the update, else as a view of
        another tensor in the same memory.
        """
        if (name := self._names.get(self._key(tensor))) is not None:
            return name
        source = self._storages.get(operations.address(tensor))
        if source is None or source[0] in self.statics:
            self.statics[name := self._new("s", tensor)] = tensor.detach()
            return name
        known, begin, dtype = source
        if tensor.dtype != dtype:
            raise Unreadable("a view of another type")
        offset = f"{known}.storage_offset() + {tensor.storage_offset() - begin}"
        name = self._new("t", tensor)
        text = f"as_strided({known}, {[*tensor.shape]}, {[*tensor.stride()]}, {offset})"
        self._lines.append(_Line((name,), text, frozenset([known])))
        return name

    def _new(self, kind: str, tensor: Tensor) -> str:
        name = self._names[self._key(tensor)] = f"{kind}{len(self._names)}"
        self._storages.setdefault(operations.address(tensor), (name, tensor.storage_offset(), tensor.dtype))
        self._kept.append(tensor)
        return name

    @staticmethod
    def _key(tensor: Tensor) -> Any:
        where = (operations.address(tensor), tensor.storage_offset())
        return (*where, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
