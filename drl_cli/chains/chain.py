"""Chain: makes updates with Python code until the update is compiled, and then with the compiled program.

The first calls record the update. If two records are equal, a separate process compiles the record, and later updates
run the compiled program. Each size of the batch has its own program. Each outcome of a condition on the counts also has
its own program: with a delayed actor, there are programs with and without a step of the actor. Rare programs are not
compiled. There are two modes (`When.time`):

- `before`: The chain compiles a program before its first update, and undoes the recorded updates. So the program makes
  every update, also after a resume, and equal seeds give equal weights.
- `beside`: Python code makes the updates until the program is ready.

Several trainers average tensors during an update. There, the record is cut into several programs. All trainers have to
change to their programs at the same update, because a program rounds differently. They agree with the function `least`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drl_cli.chains.compiling import Compilation, NotCompiled
from drl_cli.chains.cut import Cut, Segments, cut
from drl_cli.chains.program import Program
from drl_cli.chains.record import Record
from drl_cli.chains.tape import Tape, Untraceable
from drl_cli.chains.variants import Columns, Variant, attributes, changed, find, sizes_of, tensors_of
from drl_cli.chains.when import When

MOST_VARIANTS = 8
"""The largest number of forms of an update. With more, the chain gives up."""
MOST_NODES = 8_000
"""The largest number of operations of an update that is compiled, because compiling more takes minutes."""
MOST_RECORDS = 4
"""The number of records after which the chain gives up if no two consecutive ones are equal."""
RARE = 0.02
"""If an update's form is needed for a smaller share of the updates, such as a periodic copy, it is not compiled."""


class _Variant(Variant):
    """One form of an update: its record, its compilations and, when they are ready, its program."""

    def __init__(self, sizes: Any, record: Record, result: Any, owner: Any) -> None:
        super().__init__(sizes, record.path, record.storages, result, owner)
        self.record, self.is_rare = record, record.path.share() < RARE
        self.compilations: list[Compilation] = []
        self.cut: Cut | None = None
        self.loaded: Program | None = None
        self.program: Program | None = None
        """`loaded`, as soon as it is loaded in all trainers."""
        self.started, self.problem = 0.0, ""

    def start(self, *, is_urgent: bool) -> None:
        """Start to compile the record. If the update has to be cut, start a compilation of each segment.

        If the record cannot be compiled, `load` raises NotCompiled.
        """
        self.started = time.perf_counter()
        try:
            self.cut = cut(self.record) if self.record.effects else None
            records = [self.record] if self.cut is None else [segment.record for segment in self.cut.segments]
            for record in records:
                self.compilations.append(Compilation(record, is_urgent=is_urgent))
        except NotCompiled as error:
            self.problem = str(error)

    def load(self, *, wait: bool) -> Program | None:
        """Return the compiled program, or None if it is not ready and `wait` is False.

        Raise NotCompiled if the compilation has failed.
        """
        if self.problem:
            raise NotCompiled(self.problem)
        libraries = [compilation.library(wait=wait) for compilation in self.compilations]
        ready = [library for library in libraries if library is not None]
        if len(ready) < len(libraries):
            return None
        if self.cut is None:
            return _loaded(self.record, ready[0])
        programs = [_loaded(part.record, library) for part, library in zip(self.cut.segments, ready, strict=True)]
        return Segments(self.record, self.cut, programs)

    def close(self) -> None:
        """End compilations that still run."""
        for compilation in self.compilations:
            compilation.close()


def _loaded(record: Record, library: str) -> Program:
    """Return the program in a library. Raise NotCompiled, and remove the library, if it cannot be loaded."""
    try:
        return Program(record, library)
    except (OSError, RuntimeError) as error:  # such as a library of another machine
        Path(library).unlink(missing_ok=True)
        raise NotCompiled(f"{library} cannot be loaded: {str(error).splitlines()[0]}") from error


class Bound:
    """A compiled update as a function of the columns of a batch. It returns what the update returns.

    `call` runs the program and returns its output tensors, and `result` builds the update's result from them.
    """

    def __init__(
        self, call: Callable[[Sequence[Tensor]], list[Tensor]], result: Callable[[Sequence[Tensor]], Any]
    ) -> None:
        self.call, self._result = call, result

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        return self._result(self.call(tensors))


class Chain:
    """Makes updates: a call runs `update(columns, counts)`, or the compiled program when it is ready.

    An update returns tensors in tuples and dicts. It may change tensors of the algorithm `owner` in place, but may not
    replace attributes. Updates that are neither compiled nor recorded call `plain`, which makes the same update as
    `update` (default: `update` itself). If a condition of `Tape.require` does not hold, such as a finite gradient, the
    chain undoes the update and returns `skipped()`. `least` returns the smallest of the numbers that the trainers pass.
    """

    def __init__(
        self,
        update: Callable[[Columns, Any], Any],
        owner: Any,
        when: When,
        skipped: Callable[[], Any] = dict,
        plain: Callable[[Columns, Any], Any] | None = None,
        least: Callable[[int], int] = int,
    ) -> None:
        self._update, self._owner, self._when, self._skipped = update, owner, when, skipped
        self._plain, self._least = plain or update, least
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
        is_rare = variant is not None and variant.is_rare
        if is_rare or not self._when.may_start():
            return self._plain(columns, counts)
        if variant is not None and variant.started:  # the compilation runs
            is_ready = self._take_over(variant, wait=False)
            return self(columns, counts) if is_ready else self._plain(columns, counts)
        if self._when.time == "before":
            return self._before(sizes, columns, counts)
        return self._beside(sizes, columns, counts)

    def bound(self, columns: Columns, counts: Any = ()) -> Bound | None:
        """Return a fast function of columns with the sizes of these columns, or None if there is no compiled program.

        The function checks nothing. It may be called until something changes on which the update depends, other than
        the columns. It may write its results into the same tensors in each call.
        """
        variant = find(self._variants, sizes_of(columns), counts)
        if variant is None or variant.program is None or self._needs_care(variant):
            return None
        return Bound(variant.program.repeated(counts, len(columns)), variant.result)

    def many(self, columns: Columns, counts: Sequence[Any]) -> list[Any]:
        """Make U updates with the columns `[U, ...]` and the U elements of `counts`; return the list of their results.

        A compiled program makes consecutive updates in one call.
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
            variant.close()
        self._variants = []

    def _needs_care(self, variant: _Variant) -> bool:
        """Return whether the variant's program may not run without checks.

        This is the case if an update may have to be undone, or if an attribute of the owner was replaced.
        """
        return variant.record.demands or variant.replaced(self._owner) is not None

    def _run(self, variant: _Variant, columns: Columns, counts: Any) -> Any:
        """Make the update with the variant's program; undo the update if one of its conditions does not hold."""
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
        """Make the update and record it. Start the compilation if this record equals the last record."""
        tape, result, variant = self._record_everywhere(sizes, columns, counts)
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
        if self._least(variant.record.equals(old.record)):
            variant.start(is_urgent=False)
        elif variant.records >= MOST_RECORDS:
            self._give_up("its updates differ from call to call")
        return result

    def _before(self, sizes: Any, columns: Columns, counts: Any) -> Any:
        """Record the update until two records are equal. Undo the recorded updates, compile, and make the update."""
        if len(self._variants) >= MOST_VARIANTS:
            self._give_up(f"its updates differ in more than {MOST_VARIANTS} ways")
            return self._plain(columns, counts)
        last: _Variant | None = None
        for _ in range(MOST_RECORDS):
            tape, result, variant = self._record_everywhere(sizes, columns, counts)
            if variant is None and tape.is_sound:
                return result
            tape.rewind(generators=variant is not None)
            if variant is None:
                return self._skipped()
            if variant.is_rare:
                self._variants.append(variant)
                return self._plain(columns, counts)
            if last is not None and self._least(variant.record.equals(last.record)):
                break
            last = variant
        else:
            self._give_up("its updates differ from call to call")
            return self._plain(columns, counts)
        self._variants.append(variant)
        variant.start(is_urgent=True)
        is_ready = self._take_over(variant, wait=True)
        return self(columns, counts) if is_ready else self._plain(columns, counts)

    def _record_everywhere(self, sizes: Any, columns: Columns, counts: Any) -> tuple[Tape, Any, _Variant | None]:
        """Make the update; return its tape, its result, and its variant, or None if a trainer could not record it."""
        tape, result, variant = self._record(sizes, columns, counts)
        is_recorded_everywhere = self._least(variant is not None)
        if variant is not None and not is_recorded_everywhere:
            self._give_up("another trainer cannot record them")
            return tape, result, None
        return tape, result, variant

    def _record(self, sizes: Any, columns: Columns, counts: Any) -> tuple[Tape, Any, _Variant | None]:
        """Make the update; return its tape, its result, and its variant, or None if this trainer cannot record it."""
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

    def _take_over(self, variant: _Variant, *, wait: bool) -> bool:
        """Use the compiled program from now on if it is ready in all trainers; return whether it is."""
        failed, not_ready, ready = -1, 0, 1
        problem = ""
        try:
            variant.loaded = variant.loaded or variant.load(wait=wait)
        except NotCompiled as error:
            problem = str(error)
        state = ready if variant.loaded is not None else not_ready
        state = self._least(failed if problem else state)  # of all trainers
        if state == failed:
            self._give_up(problem or "another trainer cannot compile them")
        if state != ready:
            return False
        variant.program = variant.loaded
        if not self._is_told:
            self._is_told = True
            seconds = time.perf_counter() - variant.started
            cpu_s = sum(compilation.cpu_s for compilation in variant.compilations)
            cost = f"compiled in {seconds:.0f} s, with {cpu_s:.0f} s of processor time"
            self._when.tell(f"compiled updates take over ({cost})")
        return True

    def _give_up(self, reason: str) -> None:
        """Make all updates with Python code from now on, and tell the user why."""
        self.reset()
        self._is_off = True
        self._when.warn(f"trainer.compile: the updates are not compiled, and run as before: {reason}")
