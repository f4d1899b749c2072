"""Cut: divides a recorded update into segments, between which the trainers average tensors.

An effect is a call that changes a tensor by messages between trainers, such as the average of a gradient. A compiler
cannot compile an update with an effect as one graph. Therefore the update is cut into segments. Each segment is a graph
without effects, and has the operations that need the results of the effects before it.

Segments pass values to each other by numbers. The first numbers are the update's columns, scalars, random draws and
results of effects, in the order of `Record.graph`. More numbers follow for the values that a segment computes for a
later segment or for the result of the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from drl_cli.chains.program import Program
from drl_cli.chains.record import Effect, Record

aten = torch.ops.aten


@dataclass(frozen=True)
class Segment:
    """A part of an update that can be compiled. `inputs` and `outputs` are the numbers of the values that it uses.

    The columns of `record` are the values `inputs`, and its results are the values `outputs`. After the segment, each
    of the `effects` changes the value with the given number.
    """

    record: Record
    inputs: Sequence[int]
    outputs: Sequence[int]
    effects: Sequence[tuple[Effect, int]]


@dataclass(frozen=True)
class Cut:
    """An update, divided into segments. The update returns the values with the numbers `results`."""

    segments: Sequence[Segment]
    results: Sequence[int]


class Segments(Program):
    """The program of an update with effects: runs the compiled segments, and the effects between them."""

    def __init__(self, record: Record, cut: Cut, programs: Sequence[Program]) -> None:
        self._keep(record)
        self._cut, self._parts = cut, [*zip(cut.segments, programs, strict=True)]

    def updates(self, columns: Sequence[Tensor], counts: Sequence[Any]) -> list[Tensor]:
        inputs = self._inputs(columns, counts)
        made = [self._update([values[i : i + 1] for values in inputs]) for i in range(len(counts))]
        return [torch.cat(values) for values in zip(*made, strict=True)]

    def _update(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Make one update; return its results. All values are `[1, ...]`."""
        values = dict(enumerate(inputs))
        for segment, program in self._parts:
            made = program.updates([values[i] for i in segment.inputs], [()])
            values.update(zip(segment.outputs, made, strict=True))
            for effect, i in segment.effects:
                effect(values[i][0])
        return [values[i] for i in self._cut.results]


def cut(record: Record) -> Cut:
    """Divide a record with effects into segments."""
    return _Cutter(record).cut()


class _Cutter:
    """Makes the segments of a record from the last to the first, because a segment returns what later segments need."""

    def __init__(self, record: Record) -> None:
        graph = fx.GraphModule({}, record.graph)
        FakeTensorProp(graph, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*record.examples)
        self.record = record
        *self.nodes, output = record.graph.nodes
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.storages = {node: i for i, node in enumerate(placeholders[: len(record.storages)])}
        self.numbers = {node: i for i, node in enumerate(placeholders[len(record.storages) :])}
        first, last = len(record.written), len(output.args[0]) - len(record.effects)
        self.contents = dict(zip(record.written, output.args[0][:first], strict=True))
        """The new content of each storage that no segment writes yet, by the index of the storage."""
        self.results, self.given = output.args[0][first:last], output.args[0][last:]
        self.averaged = placeholders[len(placeholders) - len(record.effects) :]
        self.after, self.stages = self._stages()
        self.own = {*self.storages}
        """Nodes that depend only on storages, such as `beta * moment`."""
        for node in self.nodes:
            if node.op != "placeholder" and self.own.issuperset(node.all_input_nodes):
                self.own.add(node)
        self.outputs: list[list[fx.Node]] = [[] for _ in range(max(self.after) + 2)]
        """For each segment, the nodes whose values it returns under a number."""

    def _stages(self) -> tuple[list[int], dict[fx.Node, int]]:
        """Return the index of the segment after which each effect runs, and of the segment that computes each node."""
        effects: dict[fx.Node, frozenset[int]] = {x: frozenset([i]) for i, x in enumerate(self.averaged)}
        for node in self.nodes:  # the effects that each node depends on
            effects.setdefault(node, frozenset().union(*(effects[source] for source in node.all_input_nodes)))
        after = list[int]()
        for node in self.given:
            after.append(max([0, *after[-1:], *(after[i] + 1 for i in effects[node])]))
        return after, {node: max((after[i] + 1 for i in found), default=0) for node, found in effects.items()}

    def cut(self) -> Cut:
        results = [self._number(node) for node in self.results]
        segments = [self._segment(stage) for stage in reversed(range(len(self.outputs)))]
        return Cut(segments[::-1], results)

    def _number(self, node: fx.Node) -> int:
        """Return the number of a node's value. A value without a number gets one, and its segment then returns it."""
        if node not in self.numbers:
            self.numbers[node] = len(self.numbers)
            self.outputs[self.stages[node]].append(node)
        return self.numbers[node]

    def _segment(self, stage: int) -> Segment:
        """Return the segment with the index `stage`.

        The segment also writes the new content of a storage if it computes the content, or if it is the last segment
        that reads the storage.
        """
        effects = [i for i, after in enumerate(self.after) if after == stage]
        outputs = [*self.outputs[stage], *(self.given[i] for i in effects)]
        numbers = [self.numbers[node] for node in [*self.outputs[stage], *(self.averaged[i] for i in effects)]]
        written = dict[int, fx.Node]()
        while True:  # a new content may need more storages, whose contents can then be written, too
            body, storages, inputs = self._needs(stage, [*outputs, *written.values()])
            ready = {i: x for i, x in self.contents.items() if self.stages[x] == stage or i in storages}
            if not ready:
                break
            written |= ready
            self.contents = {i: node for i, node in self.contents.items() if i not in ready}
        own = sorted({*storages, *written})
        results = [*(written[i] for i in own if i in written), *outputs]
        places = [place for place, i in enumerate(own) if i in written]
        record = self._record(body, own, inputs, results, places)
        calls = [(self.record.effects[i], self.numbers[self.averaged[i]]) for i in effects]
        return Segment(record, [self.numbers[node] for node in inputs], numbers, calls)

    def _needs(self, stage: int, roots: Iterable[fx.Node]) -> tuple[set[fx.Node], set[int], list[fx.Node]]:
        """Return the nodes that a segment computes to get `roots`, the storages that it reads, and its inputs.

        Views, and values that depend only on storages, are no inputs. The segment computes them again, which is faster
        than a copy.
        """
        body, storages, inputs, left = set[fx.Node](), set[int](), dict[fx.Node, None](), [*roots]
        while left:
            node = left.pop()
            if node in self.storages:
                storages.add(self.storages[node])
            elif node.op != "placeholder" and (self.stages[node] == stage or node in self.own or _is_view(node)):
                left += [] if node in body else node.all_input_nodes
                body.add(node)
            else:
                self._number(node)
                inputs[node] = None
        return body, storages, [*inputs]

    def _record(
        self,
        body: set[fx.Node],
        storages: Sequence[int],
        inputs: Sequence[fx.Node],
        results: Sequence[fx.Node],
        written: Sequence[int],
    ) -> Record:
        """Return the record of a segment, which computes the nodes `body` and returns `results`."""
        graph, whole = fx.Graph(), self.record
        places = {index: node for node, index in self.storages.items()}
        sources = [*(places[i] for i in storages), *inputs]
        known = {node: graph.placeholder(f"x{i}") for i, node in enumerate(sources)}
        for node in self.nodes:
            if node in body:
                known[node] = graph.node_copy(node, known.__getitem__)
                known[node].meta = {}  # fake tensors, which cannot be sent to the process that compiles
        graph.output(tuple(known[node] for node in results))
        values = [node.meta["val"] for node in results[len(written) :]]
        return replace(
            whole,
            graph=graph,
            storages=[whole.storages[i] for i in storages],
            written=written,
            scalars=(),
            draws=(),
            examples=[torch.zeros(x.meta["val"].shape, dtype=x.meta["val"].dtype) for x in sources],
            results=[(value.shape, value.dtype) for value in values],
            demands=False,
            effects=(),
        )


def _is_view(node: fx.Node) -> bool:
    """Return whether a node is a view of its input, whatever the strides of the input are."""
    schema = getattr(node.target, "_schema", None)
    is_alias = schema is not None and any(result.alias_info is not None for result in schema.returns)
    return is_alias and node.target is not aten.as_strided.default
