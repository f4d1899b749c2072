"""Tape: records the tensor operations of an update, while the update runs, as a graph without side effects.

    tape = Tape(counts)
    with tape:
        for column in batch.values():
            tape.input(column)
        result = update(batch, tape.counts)   # runs as always, and changes its tensors
    record = tape.record(outputs)             # the same update as a graph

The graph's inputs are the batch, scalars such as a learning rate, random numbers, and the storages that existed before
the update: parameters, the optimizer's moments, target networks and constants. The graph contains the backward pass and
the optimizer's step, because they call tensor operations, too. The graph does not contain the Python code between these
operations, such as a condition on a count. `Record.path` has these conditions. The graph is valid for all counts that
give the same outcomes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from drl_cli.chains import operations
from drl_cli.chains.memory import Geometry, Memory, Recipe, Unreadable
from drl_cli.chains.record import Draw, Effect, Record, Storage, in_parts
from drl_cli.chains.recorder import Recorder

aten = torch.ops.aten
_item = operator.getitem
SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
"""Operations whose result has the values of the argument in the same order, so that it needs no node."""


class Untraceable(Exception):
    """An update cannot be recorded as a graph. The message names the line of code that is the reason."""


class Tape(Recorder):  # type: ignore[no-untyped-call]
    """Records the operations of one update as a graph. The module shows an example."""

    wants_plain = True

    def __init__(self, counts: Any = ()) -> None:  # Any: a NamedTuple of integers
        super().__init__(counts)
        self.graph = fx.Graph()
        self._memories: dict[int, Memory] = {}
        self._kept: list[Tensor] = []  # keeps all tensors, so that no new tensor gets the address of an old one
        self._captured: list[tuple[Tensor, fx.Node]] = []
        self._originals: list[Tensor] = []
        self._generators: dict[torch.Generator, Tensor] = {}
        self._batch: list[tuple[Tensor, fx.Node]] = []
        self._scalars: list[tuple[Callable[[Any], float], Tensor, fx.Node]] = []
        self._effects: list[tuple[Effect, Tensor, fx.Node, fx.Node]] = []
        self._sound: list[Tensor] = []
        self._draws: list[tuple[Draw, fx.Node]] = []
        self._drawn: list[Tensor] = []

    def input(self, tensor: Tensor) -> None:
        """Note that this tensor, such as a column of the batch, is an input of the graph."""
        self._batch.append((tensor, self._declare(tensor)))

    def scalar(self, compute: Callable[[Any], float]) -> Tensor:
        """Return `compute(counts)` as a float32 tensor without dimensions. The tensor becomes an input of the graph."""
        with _disable_current_modes():
            tensor = torch.tensor(compute(self._counts), dtype=torch.float32)
        self._scalars.append((compute, tensor, self._declare(tensor)))
        return tensor

    def effect(self, function: Effect, tensor: Tensor) -> None:
        """Call a function that changes a tensor by messages to other trainers. The graph has to be cut at this call."""
        with self.guarded("a call to other trainers"):
            given = self._read(tensor)
        with _disable_current_modes():
            function(tensor)
        if self.reason is None:
            result = self.graph.placeholder("averaged")
            self._effects.append((function, tensor, given, result))
            self._write(tensor, result)

    def require(self, condition: Tensor) -> None:
        """Note a condition, bool `[]`, such as a finite gradient. If it is False, the update has to be undone."""
        self._sound.append(condition)

    @property
    def is_sound(self) -> bool:
        """Whether all conditions of `require` hold."""
        return all(bool(condition) for condition in self._sound)

    @property
    def conditions(self) -> Sequence[Tensor]:
        """The conditions that were passed to `require`, bool `[]` each."""
        return self._sound

    def rewind(self, generators: bool = True) -> None:
        """Undo the update: restore all changed tensors and, with `generators`, the states of the random generators."""
        for (tensor, _), original in zip(self._captured, self._originals, strict=True):
            tensor.copy_(original)
        for generator, state in self._generators.items() if generators else ():
            generator.set_state(state)

    def record(self, outputs: Sequence[Tensor]) -> Record:
        """Return the record of the update, whose graph returns these outputs.

        Raise Untraceable if the update could not be recorded.
        """
        storages = list[Storage]()
        try:
            nodes = [self._read(tensor) for tensor in outputs] if self.reason is None else []
            for flat, node in self._captured:
                storages.append(Storage(flat, node, self._memories[operations.address(flat)].changes()))
        except Unreadable as error:
            self.fail(str(error))
        except Exception as error:
            self.fail(f"its results cannot be recorded: {error!r}")
        if self.reason is not None:
            raise Untraceable(self.reason)
        given = (node for _, _, node, _ in self._effects)
        self.graph.output((*(piece.node for storage in storages for piece in storage.changes), *nodes, *given))
        batch, scalars = [tensor for tensor, _ in self._batch], [tensor for _, tensor, _ in self._scalars]
        others = [*(node for _, node in self._batch), *(node for *_, node in self._scalars)]
        others += [*(node for _, node in self._draws), *(node for *_, node in self._effects)]
        graph = in_parts(self.graph, storages, others)
        parts, written = list[Tensor](), list[int]()
        for storage in storages:
            starts = {piece.start for piece in storage.changes}
            for start, stop in storage.parts():
                written += [len(parts)] if start in starts else []
                parts.append(storage.flat[start:stop])
        averaged = [torch.zeros(tensor.shape, dtype=tensor.dtype) for _, tensor, *_ in self._effects]
        examples = [*(torch.zeros_like(x) for x in (*parts, *batch, *scalars, *self._drawn)), *averaged]
        computes, draws = [compute for compute, *_ in self._scalars], [draw for draw, _ in self._draws]
        results = [(x.shape, x.dtype) for x in outputs]
        effects = [effect for effect, *_ in self._effects]
        return Record(graph, parts, written, computes, draws, examples, results, self.path, bool(self._sound), effects)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.reason is not None:
            with self.guarded(func):
                for tensor in operations.written(func, args, kwargs):
                    self._memory(tensor)  # for `rewind`
            return func(*args, **kwargs)
        step: Callable[[Any], None] | None = None
        with self.guarded(func):
            step = self._before(func, args, kwargs)
        out = func(*args, **kwargs)
        if step is not None:
            with self.guarded(func):
                step(out)
        return out

    def _before(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        """Read the arguments of an operation before it runs; return a function that adds the operation to the graph.

        The function takes the operation's results. Return None if there is nothing to add.
        """
        if func.namespace not in ("aten", "mkldnn", "prims"):
            self.fail(f"the operator {func} is not one of torch")
            return None
        if self.refuse_values(func, args):
            return None
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawing(func, args, kwargs)
        written = operations.written(func, args, kwargs)
        for tensor in written:
            self._memory(tensor)  # keeps the content that the operation will change, for `rewind`
        if not written:
            nodes_args, nodes_kwargs = self._nodes(args), self._nodes(kwargs)
            return lambda out: self._add(func, args, kwargs, nodes_args, nodes_kwargs, out)
        return self._writing(func, args, kwargs, written)

    def _writing(self, func: Any, args: Any, kwargs: Any, written: Sequence[Tensor]) -> Callable[[Any], None]:
        """Return a function that adds an operation that changes the tensors `written`.

        The graph gets the variant of the operation without side effects. The results of the variant become the new
        contents of the tensors.
        """
        pure = operations.functional(func)
        if pure is None:
            raise Unreadable("there is no variant without a side effect")
        names = {argument.name for argument in pure._schema.arguments}
        nodes_args = self._nodes(args[: len(pure._schema.arguments)])
        nodes_kwargs = self._nodes({key: value for key, value in kwargs.items() if key in names})

        def add(out: Any) -> None:
            node = self._call(pure, *nodes_args, **nodes_kwargs)
            if len(written) == 1 and not isinstance(pure._schema.returns[0].type, torch.ListType):
                values = [node] if len(pure._schema.returns) == 1 else [self._call(_item, node, 0)]
            else:
                values = [self._call(_item, node, i) for i in range(len(written))]
            for tensor, value in zip(written, values, strict=True):
                self._write(tensor, self._as(tensor, value, pure))

        return add

    def _as(self, tensor: Tensor, value: fx.Node, pure: Any) -> fx.Node:
        """Convert a node to the type and size of the tensor to which its value is written."""
        if pure in (aten.zero.default, aten.fill.Scalar, aten.fill.Tensor):
            return value
        return self._call(
            aten.expand.default, self._call(aten._to_copy.default, value, dtype=tensor.dtype), [*tensor.shape]
        )

    def _drawing(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        """Return a function that makes the results of an operation with random numbers an input of the graph."""
        own = operations.written(func, args, kwargs)
        for tensor in own:
            self._memory(tensor)
        rest = args[1:] if own else args
        if operations.tensors((rest, kwargs)) or len(own) > 1 or (own and own[0] is not args[0]):
            self.fail(f"{func}: random numbers that depend on tensors")
            return None
        like = (tuple(own[0].shape), own[0].dtype, own[0].device) if own else None
        generator = kwargs.get("generator") or torch.default_generator
        if generator not in self._generators:
            self._generators[generator] = generator.get_state()

        def add(out: Tensor) -> None:
            node = self.graph.placeholder("draw")
            self._draws.append((Draw(func, tuple(rest), dict(kwargs), like), node))
            self._drawn.append(out)
            if own:
                self._write(own[0], node)
            else:
                self._remember(out, node)

        return add

    def _add(self, func: Any, args: Any, kwargs: Any, nodes_args: Any, nodes_kwargs: Any, out: Any) -> None:
        """Add an operation without side effects to the graph. Its results are new tensors, or views of an argument."""
        results = list(out) if isinstance(out, tuple | list) else [out]
        sources = {operations.address(tensor): tensor for tensor in operations.tensors((args, kwargs))}
        node: fx.Node | None = None
        for i, result in enumerate(results):
            if not isinstance(result, Tensor):
                if result is not None:
                    self.fail(f"{func}: a result that is no tensor")
                continue
            index = i if isinstance(out, tuple | list) else None
            if not result.numel():
                continue
            source = sources.get(operations.address(result))
            if source is not None:
                if func not in SAME and Geometry.of(source) != Geometry.of(result):
                    recipe = self._recipe(func, args, kwargs, source, index)
                    self._memories[operations.address(result)].remember(Geometry.of(result), recipe)
                continue
            node = node or self._call(func, *nodes_args, **nodes_kwargs)
            self._remember(result, node if index is None else self._call(_item, node, index))

    def _recipe(self, func: Any, args: Any, kwargs: Any, source: Tensor, index: int | None) -> Recipe:
        def make(node: fx.Node) -> fx.Node:
            filled = tree_map_only(
                Tensor, lambda tensor: node if tensor is source else self._read(tensor), (args, kwargs)
            )
            out: fx.Node = self._call(func, *filled[0], **filled[1])
            return out if index is None else self._call(_item, out, index)

        return Recipe(Geometry.of(source), make)

    def _nodes(self, values: Any) -> Any:
        return tree_map_only(Tensor, self._read, values)

    def _read(self, tensor: Tensor) -> fx.Node:
        if not tensor.numel():  # may share a storage with other tensors, but none of their elements
            return self._call(aten.zeros.default, [*tensor.shape], dtype=tensor.dtype, device=tensor.device)
        return self._memory(tensor).read(Geometry.of(tensor))

    def _write(self, tensor: Tensor, node: fx.Node) -> None:
        if tensor.numel():
            self._memory(tensor).write(Geometry.of(tensor), node)

    def _memory(self, tensor: Tensor) -> Memory:
        memory = self._memories.get(operations.address(tensor))
        return self._capture(tensor) if memory is None else memory

    def _capture(self, tensor: Tensor) -> Memory:
        """Make the whole storage of a tensor that existed before the update an input of the graph."""
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        with _disable_current_modes():
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))
            self._originals.append(flat.clone())
        node = self.graph.placeholder("captured")
        self._captured.append((flat, node))
        return self._remember(flat, node)

    def _declare(self, tensor: Tensor) -> fx.Node:
        node = self.graph.placeholder("input")
        if (memory := self._memories.get(operations.address(tensor))) is not None:
            memory.add(Geometry.of(tensor), node)
        else:
            self._remember(tensor, node)
        return node

    def _remember(self, tensor: Tensor, node: fx.Node) -> Memory:
        self._kept.append(tensor)
        memory = self._memories[operations.address(tensor)] = Memory(self._call, Geometry.of(tensor), node)
        return memory

    def _call(self, func: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(func, args, kwargs)
