"""Program: a recorded update as compiled code, which changes the algorithm's tensors in place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from drl_cli.chains.record import drawn

if TYPE_CHECKING:
    from drl_cli.chains.record import Record

aten = torch.ops.aten


def in_place(record: Record) -> fx.Graph:
    """Return the graph of a record, changed so that it writes the new contents into the storages.

    The record's own graph returns these contents. The changed graph returns only the other outputs.
    """
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in record.graph.nodes:
        if node.op != "output":
            known[node] = graph.node_copy(node, lambda node: known[node])
    placeholders = list(graph.find_nodes(op="placeholder"))
    *_, output = record.graph.nodes
    results = [known[node] for node in output.args[0]]
    for index, value in zip(record.written, results, strict=False):
        graph.call_function(aten.copy_.default, (placeholders[index], value))
    graph.output(tuple(results[len(record.written) :]))
    return graph


class Program:
    """Makes updates with a compiled record. Nothing is checked: columns must have the sizes of the recorded update."""

    def __init__(self, record: Record, library: str) -> None:
        self._native: Any = getattr(ctypes.CDLL(library), "drl_updates", None)
        self._runner: Any = None
        if self._native is None:
            self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
        else:
            self._native.restype = ctypes.c_char_p
        self._keep(record)

    def _keep(self, record: Record) -> None:
        self._storages, self._results = [*record.storages], record.results
        self._scalars, self._draws = record.scalars, record.draws
        self._written = [record.storages[index] for index in record.written]
        self._addresses = [tensor.data_ptr() for tensor in record.storages]
        self._in_place: InPlace | None = None

    def __call__(self, columns: Sequence[Tensor], counts: Any) -> list[Tensor]:
        """Make one update; return the tensors that were given to `Tape.record` as outputs."""
        batched = [column[None] for column in columns]
        return [values[0] for values in self.updates(batched, [counts])]

    def repeated(self, counts: Any, num_columns: int) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """Return a function of the columns that makes an update with these counts, with little Python code.

        The function may write its results into the same tensors in each call.
        """
        if self._native is None or self._scalars or self._draws:
            return lambda columns: self(columns, counts)
        if self._in_place is None or self._in_place.num_columns != num_columns:
            self._in_place = InPlace(self._native, self._addresses, num_columns, self._results)
        return self._in_place

    def updates(self, columns: Sequence[Tensor], counts: Sequence[Any]) -> list[Tensor]:
        """Make U updates with columns `[U, ...]` and the U elements of `counts`; return the results as `[U, ...]`."""
        num, inputs = len(counts), self._inputs(columns, counts)
        if self._native is None:
            made = [self._runner.run([*self._storages, *(values[i] for values in inputs)]) for i in range(num)]
            return [torch.stack(values) for values in zip(*made, strict=True)]
        outputs = [torch.empty(num, *size, dtype=dtype) for size, dtype in self._results]
        addresses = self._addresses + [values.data_ptr() for values in inputs]
        steps = [0] * len(self._addresses) + [_step(values) for values in inputs]
        ends = [values.data_ptr() for values in outputs], [_step(values) for values in outputs]
        error = self._native(num, *(_array(numbers) for numbers in (addresses, steps, *ends)))
        if error is not None:
            raise RuntimeError(error.decode())
        return outputs

    def _inputs(self, columns: Sequence[Tensor], counts: Sequence[Any]) -> list[Tensor]:
        """Return the columns, scalars and random numbers of U updates, `[U, ...]` each."""
        scalars = [torch.tensor([compute(each) for each in counts], dtype=torch.float32) for compute in self._scalars]
        return [*columns, *scalars, *drawn(self._draws, len(counts))]

    def contents(self) -> list[Tensor]:
        """Return copies of all storages that the program changes."""
        return [tensor.clone() for tensor in self._written]

    def undo(self, contents: Sequence[Tensor]) -> None:
        """Set the storages to the contents that `contents` returned before an update."""
        for tensor, content in zip(self._written, contents, strict=True):
            tensor.copy_(content)


class InPlace:
    """A program that makes one update in each call, and always writes its results to the tensors `results`.

    `address` is the address of the C function. Its arguments are the number of updates (1), `inputs`, `no_steps`,
    `outputs` and `no_steps` again.
    """

    def __init__(self, native: Any, addresses: Sequence[int], num_columns: int, results: Sequence[Any]) -> None:
        self.num_columns, self._native = num_columns, native
        self._first, self._one = len(addresses), ctypes.c_int64(1)
        self.results = [torch.empty(size, dtype=dtype) for size, dtype in results]
        self.inputs = _array([*addresses, *[0] * num_columns])
        self.outputs = _array([values.data_ptr() for values in self.results])
        self.no_steps = _array([0] * max(len(self.inputs), len(self.outputs)))  # one update needs no steps

    @property
    def address(self) -> int | None:
        return ctypes.cast(self._native, ctypes.c_void_p).value

    def __call__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        for i, column in enumerate(columns, self._first):
            self.inputs[i] = column.data_ptr()
        if (error := self._native(self._one, self.inputs, self.no_steps, self.outputs, self.no_steps)) is not None:
            raise RuntimeError(error.decode())
        return self.results


def _step(values: Tensor) -> int:
    """Return how many bytes lie between the first elements of `values[0]` and `values[1]`."""
    return values.stride(0) * values.element_size()


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)
