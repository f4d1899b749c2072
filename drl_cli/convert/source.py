"""Write a trace as the source of two numpy functions: `load_NAME` of the parameters, and `NAME` of the inputs."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from drl_cli.convert.rules import FRESH, IGNORED, UFUNCS, VIEWS, Op, Rule
from drl_cli.convert.trace import Call, Fact, NotConverted, Rows, Trace, Value, values
from drl_cli.types import Array

CASTS = (*UFUNCS, "pow", "mean")
ALL: Mapping[str, Rule] = {**UFUNCS, **VIEWS, **FRESH}


def write(name: str, trace: Trace, constants: list[Array]) -> str:
    """Return the source of the functions. Add the arrays that `load_NAME` needs besides the parameters to `constants`.

    Raise NotConverted, with the name of the operation, if an operation has no numpy form.
    """
    return _Writer(_without_sums(trace), constants).source(name)


class _Writer:
    """`names` has the variable of each value, and `roots` the value whose memory a value uses."""

    def __init__(self, trace: Trace, constants: list[Array]) -> None:
        self.trace, self.facts, self.constants = trace, trace.facts, constants
        self.names = {Value(i): fact.name for i, fact in enumerate(self.facts) if fact.kind == "input"}
        self.load: list[str] = []  # lines that need only the parameters
        self.run: list[str] = []
        self.static = {Value(i) for i, fact in enumerate(self.facts) if fact.kind in ("weight", "constant")}
        self.loaded: list[str] = []  # variables of `load` that `run` uses
        self.roots: dict[Value, Value] = {}
        self.owned: set[Value] = set()  # values whose memory this call of `run` has allocated
        self.used = {*values([call.args for call in trace.calls]), *trace.outputs.values()}
        self.last_use = self._last_uses()

    def source(self, name: str) -> str:
        for i, call in enumerate(self.trace.calls):
            self._write(i, call)
        outputs = [self._output(value) for value in self.trace.outputs.values()]
        inputs = [fact.name for fact in self.facts if fact.kind == "input"]
        names = _joined(self.loaded)
        head = [f"    {names} = w"] if self.loaded else []
        if any(_mentions(line, "n") for line in (*self.run, *outputs)):
            head.append(f"    n = len({inputs[0]})")
        lines = [f"def load_{name}(v, c):", *self.load, f"    return {names}", "", ""]
        lines += [f"def {name}(w, rng, {', '.join(inputs)}):", *head, *self.run]
        return "\n".join([*lines, f"    return {_joined(outputs)}", ""])

    def _last_uses(self) -> dict[Value, int]:
        """Return the index of the last call that uses the memory of each root."""
        last: dict[Value, int] = {}
        for i, call in enumerate(self.trace.calls):
            arguments = list(values(call.args))
            for result in call.results:
                if result is not None:
                    self.roots[result] = self._root(arguments[0]) if call.op in VIEWS else result
            last |= {self._root(value): i for value in arguments}
        return last | {self._root(value): len(self.trace.calls) for value in self.trace.outputs.values()}

    def _root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def _write(self, i: int, call: Call) -> None:
        if call.is_draw:
            args = [text if name.isdigit() else f"{name}={text}" for name, text in self._texts(call, False).items()]
            self._assign(call.results[0], f"{call.op}({', '.join(args)})", False)
            return
        rule = ALL.get(call.op)
        if rule is None:
            raise NotConverted(f"aten.{call.op} has no numpy form")
        arguments = list(values(call.args))
        is_static = self.static.issuperset(arguments) and not _has_rows([*call.args.values()])
        texts = self._texts(call, is_static)
        for result, text in zip(call.results, self._rendered(call, rule, texts), strict=False):
            if result is None or result not in self.used:
                continue
            out = self.facts[result.at].dtype
            if call.op in CASTS and out.is_floating_point and any(self.facts[v.at].dtype != out for v in arguments):
                text = f"({text}).astype({self.text(out)}, copy=False)"  # numpy has other rules for types
            elif call.op in UFUNCS and not is_static and (over := self._overwritten(i, arguments, result)):
                self.names[result] = self.names[over]
                self.run.append(f"    {text[:-1]}, out={self.names[over]})")
                self.owned.add(result)
                continue
            self._assign(result, text, is_static, is_view=call.op in VIEWS)

    def _assign(self, result: Value | None, text: str, is_static: bool, is_view: bool = False) -> None:
        assert result is not None
        name = self.names[result] = f"{'w' if is_static else 't'}{len(self.names)}"
        (self.load if is_static else self.run).append(f"    {name} = {text}")
        if is_static:
            self.static.add(result)
        elif not is_view or self._root(result) in self.owned:
            self.owned.add(result)

    def _overwritten(self, i: int, arguments: Sequence[Value], result: Value) -> Value | None:
        """Return an argument of call `i` whose memory can have the result, because nothing needs the argument later."""
        out = self.facts[result.at]
        for value in arguments:
            fact, is_root = self.facts[value.at], self._root(value) == value
            is_last = is_root and self.last_use[value] == i and value in self.owned
            if is_last and out.shape and (fact.shape, fact.dtype) == (out.shape, out.dtype):
                return value
        return None

    def _rendered(self, call: Call, rule: Rule, texts: dict[str, str]) -> Sequence[str]:
        facts = [None if result is None else self.facts[result.at] for result in call.results]
        assert facts[0] is not None
        texts |= {"out": self.text(facts[0].shape), "dtype": self.text(facts[0].dtype)}
        if not isinstance(rule, str | tuple):
            shape = next((self.facts[value.at].shape for value in values(call.args)), ())
            return rule(Op(call, texts, shape, [() if fact is None else fact.shape for fact in facts]))
        templates = (rule,) if isinstance(rule, str) else rule
        fields = {field for template in templates for _, field, _, _ in string.Formatter().parse(template)}
        known = {*fields, *IGNORED, *(("self", "size", "shape", "dim", "dtype", "implicit") if "out" in fields else ())}
        missing = [name for name in fields if name is not None and name not in texts]
        extra = [name for name, value in call.args.items() if name not in known and value != call.defaults.get(name)]
        more = self.used.intersection(call.results[len(templates) :])
        if missing or extra or more:
            raise NotConverted(
                f"aten.{call.op} has no numpy form with {', '.join([*missing, *extra]) or 'more results'}"
            )
        return [template.format_map(texts) for template in templates]

    def _texts(self, call: Call, is_static: bool) -> dict[str, str]:
        return {name: self.text(value, is_static) for name, value in call.args.items()}

    def text(self, value: Any, is_static: bool = True) -> str:  # Any: an argument
        """Return the source of an argument. `is_static` tells whether `load` or `run` uses it."""
        if isinstance(value, Value):
            name = self.names.get(value) or self._loaded(value)
            if not is_static and value in self.static and name not in self.loaded:
                self.loaded.append(name)
            return name
        if isinstance(value, Rows):
            return "n" if value.factor == 1 else f"{value.factor} * n"
        if isinstance(value, list | tuple):
            return _joined([self.text(each, is_static) for each in value])
        if isinstance(value, torch.dtype):
            return f"np.{str(value).removeprefix('torch.')}"
        if isinstance(value, float):
            return repr(value) if np.isfinite(value) else f"float('{value}')"
        return f"np.{value.__name__}" if isinstance(value, type) and issubclass(value, np.generic) else repr(value)

    def _loaded(self, value: Value) -> str:
        fact, name = self.facts[value.at], f"w{len(self.names)}"
        self.names[value] = name
        if fact.array is not None:
            self.constants.append(fact.array)
            self.load.append(f"    {name} = c[{len(self.constants) - 1}]")
        elif fact.tensor.is_contiguous():
            end = fact.start + fact.tensor.numel()
            cast = "" if fact.dtype == torch.float32 else f".astype({self.text(fact.dtype)})"
            self.load.append(f"    {name} = v[{fact.start}:{end}].reshape({self.text(fact.shape)}){cast}")
        else:
            raise NotConverted("a view of a parameter is not contiguous")
        return name

    def _output(self, value: Value) -> str:
        """Return the source of a result. A caller may change it, so that it is no view of inputs or of parameters."""
        text = self.text(value, is_static=False)
        return text if value in self.owned else f"{text}.copy()"


def _without_sums(trace: Trace) -> Trace:
    """Replace `addmm`, a product and a sum, by two calls, so that the sum can be written over the product."""
    calls, facts = list[Call](), list[Fact](trace.facts)
    names = {"addmm": ("mm", "mat1", "mat2"), "baddbmm": ("bmm", "batch1", "batch2"), "addmv": ("mv", "mat", "vec")}
    for call in trace.calls:
        if call.op not in names:
            calls.append(call)
            continue
        op, left, right = names[call.op]
        if call.args["alpha"] != 1 or call.args["beta"] != 1:
            raise NotConverted(f"aten.{call.op} has no numpy form with alpha and beta")
        (result,), product = call.results, Value(len(facts))
        assert result is not None
        facts.append(facts[result.at])
        second = "vec" if op == "mv" else "mat2"
        calls.append(Call(op, {"self": call.args[left], second: call.args[right]}, (product,), {}))
        calls.append(Call("add", {"self": product, "other": call.args["self"]}, (result,), {}))
    return replace(trace, calls=calls, facts=facts)


def _joined(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _has_rows(part: Any) -> bool:  # Any: arguments
    if isinstance(part, list):
        return any(map(_has_rows, part))
    return isinstance(part, Rows)


def _mentions(line: str, name: str) -> bool:
    words = "".join(each if each.isalnum() or each == "_" else " " for each in line)
    return name in words.split()
