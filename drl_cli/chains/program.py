"""Program: a recorded update as compiled code that changes the captured storages in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from drl_cli.chains.record import Record

aten = torch.ops.aten


def in_place(record: Record) -> fx.Graph:
    """Return the graph of a record that writes new values into its storages and returns only the other outputs."""
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
    """Runs a compiled record. The call has no checks: the columns must have the sizes of the recorded update."""

    def __init__(self, record: Record, library: str) -> None:
        self._runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
        self._storages = [*record.storages]
        self._scalars, self._draws = record.scalars, record.draws
        self._written = [record.storages[index] for index in record.written]

    def __call__(self, columns: Sequence[Tensor], counts: Any) -> list[Tensor]:
        """Make the update; return the tensors that were given to `Tape.record`."""
        inputs = [*self._storages, *columns]
        if self._scalars:
            inputs += [torch.tensor(compute(counts), dtype=torch.float32) for compute in self._scalars]
        for draw in self._draws:
            inputs.append(draw())
        outputs: list[Tensor] = self._runner.run(inputs)
        return outputs

    def contents(self) -> list[Tensor]:
        """Return copies of all storages that the program changes."""
        return [tensor.clone() for tensor in self._written]

    def undo(self, contents: Sequence[Tensor]) -> None:
        """Give the storages the content that `contents` returned."""
        for tensor, content in zip(self._written, contents, strict=True):
            tensor.copy_(content)
