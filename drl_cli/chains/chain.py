"""Chain: an update that runs as compiled code as soon as it can, and as plain Python until then.

The first calls record the update. If two records are the same program, a separate process compiles the program, and
later updates run the compiled program. Each size of the batch has its own program, and so has each outcome of the
conditions on the counts, such as the period of a delayed actor. Rare programs are not compiled.

- `before`: The chain compiles a program before its first update, and undoes the recorded updates. So the program makes
  every update, also after a resume, and equal seeds give equal weights.
- `beside`: Plain Python makes the updates until the program is ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drl_cli.chains.compiling import Compilation, NotCompiled
from drl_cli.chains.program import Program
from drl_cli.chains.record import Record
from drl_cli.chains.tape import Tape, Untraceable
from drl_cli.chains.variants import Columns, Variant, attributes, changed, find, sizes_of, tensors_of
from drl_cli.chains.when import When

MOST_VARIANTS = 8
MOST_NODES = 8_000
MOST_RECORDS = 4
RARE = 0.02
"""Programs for a smaller share of the updates, such as those with a periodic copy, are not worth a compilation."""


class _Variant(Variant):
    """One program of an update."""

    def __init__(self, sizes: Any, record: Record, result: Any, owner: Any) -> None:
        super().__init__(sizes, record.path, record.storages, result, owner)
        self.record, self.is_rare = record, record.path.share() < RARE
        self.compilation: Compilation | None = None
        self.program: Program | None = None


class Chain:
    """Makes the updates of `owner`: calls `update(columns, counts)` or, when it is ready, the compiled program.

    An update returns tensors in tuples and dicts, and may not replace an attribute of `owner`. Updates that are neither
    compiled nor recorded call `plain`, which makes the same update. If a condition of `Tape.require` fails, the chain
    undoes the program's update and returns `skipped()`.
    """

    def __init__(
        self,
        update: Callable[[Columns, Any], Any],
        owner: Any,
        when: When,
        skipped: Callable[[], Any] = dict,
        plain: Callable[[Columns, Any], Any] | None = None,
    ) -> None:
        self._update, self._owner, self._when, self._skipped = update, owner, when, skipped
        self._plain = plain or update
        self._variants: list[_Variant] = []
        self._is_off = self._is_told = False
        when.chains.append(self)

    def __call__(self, columns: Columns, counts: Any = ()) -> Any:
        if self._is_off:
            return self._plain(columns, counts)
        sizes = sizes_of(columns)
        variant = find(self._variants, sizes, counts)
        if variant is not None and variant.program is not None:
            return self._run(variant, columns, counts)
        if (variant is not None and variant.is_rare) or not self._when.may_start():
            return self._plain(columns, counts)
        if variant is not None and variant.compilation is not None:
            if (library := self._library(variant, wait=False)) is None:
                return self._plain(columns, counts)
            self._load(variant, library)
            return self(columns, counts)
        return (
            self._before(sizes, columns, counts)
            if self._when.time == "before"
            else self._beside(sizes, columns, counts)
        )

    def bound(self, columns: Columns, counts: Any = ()) -> Callable[[Sequence[Tensor]], Any] | None:
        """Return the program as a function of columns of these sizes, without checks, or None if it is not compiled.

        The function may be called until something changes that the update depends on, other than its columns.
        """
        variant = find(self._variants, sizes_of(columns), counts)
        if variant is None or (program := variant.program) is None or variant.record.demands:
            return None
        return lambda tensors: variant.result(program(tensors, counts))

    def many(self, columns: Columns, counts: Sequence[Any]) -> list[Any]:
        """Make an update for each of the counts, with columns `[U, ...]`; return the results.

        A program makes all consecutive updates that it can in one call.
        """
        if all(variant.program is None for variant in self._variants):
            rows = zip(*(x.unbind() for x in columns.values()), strict=True)
            return [self(dict(zip(columns, row, strict=True)), each) for row, each in zip(rows, counts, strict=True)]
        sizes, results = sizes_of(columns, first=1), list[Any]()
        while (first := len(results)) < len(counts):
            variant = find(self._variants, sizes, counts[first])
            if variant is None or variant.program is None or self._needs_care(variant):
                results.append(self({name: x[first] for name, x in columns.items()}, counts[first]))
                continue
            num = 1
            while first + num < len(counts) and find(self._variants, sizes, counts[first + num]) is variant:
                num += 1
            inputs = [x[first : first + num] for x in columns.values()]
            outputs = [x.unbind() for x in variant.program.updates(inputs, counts[first : first + num])]
            results += [variant.result([values[i] for values in outputs]) for i in range(num)]
        return results

    def reset(self) -> None:
        """Forget all records and programs, and end compilations that still run."""
        for variant in self._variants:
            if variant.compilation is not None:
                variant.compilation.close()
        self._variants = []

    def _needs_care(self, variant: _Variant) -> bool:
        """Return whether an update of this variant may have to be undone, or can no longer be made by its program."""
        return variant.record.demands or variant.replaced(self._owner) is not None

    def _run(self, variant: _Variant, columns: Columns, counts: Any) -> Any:
        assert variant.program is not None
        if (name := variant.replaced(self._owner)) is not None:
            self._give_up(f"the attribute '{name}' was replaced; change tensors in place")
            return self._plain(columns, counts)
        if not variant.record.demands:
            return variant.result(variant.program([*columns.values()], counts))
        contents = variant.program.contents()
        *outputs, is_sound = variant.program([*columns.values()], counts)
        if not is_sound:
            variant.program.undo(contents)
            return self._skipped()
        return variant.result(outputs)

    def _beside(self, sizes: Any, columns: Columns, counts: Any) -> Any:
        """Make the update and record it. Start the compilation if the last record was the same."""
        tape, result, variant = self._recorded(sizes, columns, counts)
        if not tape.is_sound:
            tape.rewind(generators=False)  # a skipped update has used its random numbers
            result = self._skipped()
        if variant is None:
            return result
        old = find(self._variants, sizes, counts)
        if old is None:
            if len(self._variants) >= MOST_VARIANTS:
                self._give_up(f"its updates differ in more than {MOST_VARIANTS} ways")
            else:
                self._variants.append(variant)
            return result
        variant.records = old.records + 1
        self._variants[self._variants.index(old)] = variant
        if variant.record.equals(old.record):
            self._start(variant, is_urgent=False)
        elif variant.records >= MOST_RECORDS:
            self._give_up("its updates differ from call to call")
        return result

    def _before(self, sizes: Any, columns: Columns, counts: Any) -> Any:
        """Record the update until two records are the same, undo them, and compile."""
        if len(self._variants) >= MOST_VARIANTS:
            self._give_up(f"its updates differ in more than {MOST_VARIANTS} ways")
            return self._plain(columns, counts)
        last: _Variant | None = None
        for _ in range(MOST_RECORDS):
            tape, result, variant = self._recorded(sizes, columns, counts)
            if variant is None and tape.is_sound:
                return result
            tape.rewind(generators=variant is not None)
            if variant is None:
                return self._skipped()
            if variant.is_rare:
                self._variants.append(variant)
                return self._plain(columns, counts)
            if last is not None and variant.record.equals(last.record):
                break
            last = variant
        else:
            self._give_up("its updates differ from call to call")
            return self._plain(columns, counts)
        self._variants.append(variant)
        self._start(variant, is_urgent=True)
        library = None if self._is_off else self._library(variant, wait=True)
        if library is None:
            return self._plain(columns, counts)
        self._load(variant, library)
        return self(columns, counts)

    def _recorded(self, sizes: Any, columns: Columns, counts: Any) -> tuple[Tape, Any, _Variant | None]:
        before = attributes(self._owner)
        tape = Tape(counts)
        with tape:
            for column in columns.values():
                tape.input(column)
            result = self._update(columns, tape.counts)
            is_sound = [torch.stack([*tape.conditions]).all()] if tape.conditions else []
        try:
            record = tape.record([*tensors_of(result), *is_sound])
        except Untraceable as error:
            self._give_up(str(error))
            return tape, result, None
        if (num := len(record.graph.nodes)) > MOST_NODES:
            self._give_up(f"an update has {num} operations, which would take minutes to compile")
            return tape, result, None
        name = changed(self._owner, before)
        variant = _Variant(sizes, record, result, self._owner)
        if name is not None and self._variants:
            self._give_up(f"an update changes the attribute '{name}'; change tensors in place, and use `counts`")
            return tape, result, None
        return tape, result, variant

    def _start(self, variant: _Variant, is_urgent: bool) -> None:
        try:
            variant.compilation = Compilation(variant.record, is_urgent)
        except NotCompiled as error:
            self._give_up(str(error))

    def _library(self, variant: _Variant, wait: bool) -> str | None:
        assert variant.compilation is not None
        try:
            return variant.compilation.library(wait)
        except NotCompiled as error:
            self._give_up(str(error))
            return None

    def _load(self, variant: _Variant, library: str) -> None:
        assert variant.compilation is not None
        seconds = time.perf_counter() - variant.compilation.started
        try:
            variant.program, variant.compilation = Program(variant.record, library), None
        except (OSError, RuntimeError) as error:  # such as a library of another machine
            Path(library).unlink(missing_ok=True)
            self._give_up(f"{library} cannot be loaded: {str(error).splitlines()[0]}")
            return
        if not self._is_told:
            self._is_told = True
            self._when.tell(f"compiled updates take over (compiled in {seconds:.0f} s)")

    def _give_up(self, reason: str) -> None:
        """Make all updates by plain Python from now on."""
        self.reset()
        self._is_off = True
        self._when.warn(f"trainer.compile: the updates are not compiled, and run as before: {reason}")
