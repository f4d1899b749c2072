"""Passes over traces: from two traces of a function to one without side effects, for any number of rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from drl_cli.convert.trace import Call, NotConverted, Rows, Trace, Value


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
