"""Replays: records the tensor operations of an update, and repeats them in later updates without its Python code.

This starts when two updates have called the same operations. Each size of the batch has its own list of operations.
Each outcome of a condition on the counts also has its own list: with a delayed actor, there are lists with and without
a step of the actor. Replayed updates compute the same bits as the update itself. After 10, 20, 40, ... replays of a
list, the update itself runs again, to notice if it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from drl_cli.chains.log import Log
from drl_cli.chains.present import recording
from drl_cli.chains.variants import Columns, Variant, attributes, changed, find, sizes_of, tensors_of

MOST_VARIANTS = 8
"""The largest number of forms of an update that are replayed. Updates of other forms run as they are."""
MOST_RECORDS = 4
"""The number of records of a form after which nothing is replayed if no two consecutive ones are equal."""
FIRST_CHECK = 10
"""The number of replays of a form after which the update itself runs for the first time."""


class _Variant(Variant):
    """One form of an update: its list of operations. After `check` replays, which `calls` counts, the update runs."""

    def __init__(self, sizes: Any, log: Log, result: Any, owner: Any) -> None:
        super().__init__(sizes, log.path, log.statics.values(), result, owner)
        self.log, self.calls, self.check = log, 0, FIRST_CHECK
        self.replay: Callable[..., tuple[Tensor, ...]] | None = None


class Replays:
    """Makes updates: a call runs `update(columns, counts)`, or repeats its recorded operations.

    An update returns tensors in tuples and dicts. It may change tensors of the algorithm `owner` in place, but may not
    replace attributes. `why` is the reason why updates are not replayed, or None.
    """

    def __init__(self, update: Callable[[Columns, Any], Any], owner: Any) -> None:
        self._update, self._owner = update, owner
        self._variants: list[_Variant] = []
        self.why: str | None = None
        self._failures = 0

    def __call__(self, columns: Columns, counts: Any = ()) -> Any:
        if self.why is not None or recording():
            return self._update(columns, counts)
        sizes = sizes_of(columns)
        variant = find(self._variants, sizes, counts)
        if variant is None and len(self._variants) >= MOST_VARIANTS:
            return self._update(columns, counts)
        if variant is None or variant.replay is None or variant.calls == variant.check:
            return self._record(sizes, columns, counts, variant)
        if variant.replaced(self._owner) is not None:
            self.reset()
            return self._update(columns, counts)
        variant.calls += 1
        scalars = [torch.tensor(compute(counts), dtype=torch.float64) for compute in variant.log.scalars]
        with torch._C._AutoDispatchBelowAutograd():  # as the operations were recorded; saves a tenth of the time
            outputs = variant.replay(*columns.values(), *scalars)
        return variant.result(outputs)

    def bound(self, columns: Columns, counts: Any = ()) -> Callable[[Sequence[Tensor]], Any] | None:
        """Return a function that replays the update for columns with the sizes of these, or None if it cannot.

        The function checks nothing. It may be called until something changes on which the update depends, other than
        the columns.
        """
        variant = None if recording() else find(self._variants, sizes_of(columns), counts)
        if variant is None or (replay := variant.replay) is None or variant.log.scalars:
            return None

        def call(tensors: Sequence[Tensor]) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return variant.result(replay(*tensors))

        return call

    def reset(self) -> None:
        """Forget all lists of operations, because tensors were replaced."""
        self._variants = []

    def _record(self, sizes: Any, columns: Columns, counts: Any, old: _Variant | None) -> Any:
        """Make the update and record it. If the record `old` has the same operations, replay it from now on."""
        before = attributes(self._owner)
        log = Log(counts)
        with log:
            for column in columns.values():
                log.input(column)
            result = self._update(columns, log.counts)
        log.finish([*tensors_of(result)])
        name = changed(self._owner, before)
        if log.reason is not None:
            self._failures += 1
            if self._failures > 1:  # the first update may differ, because it may make tensors that later updates use
                self._give_up(log.reason)
        elif name is not None and self._variants:
            self._give_up(f"an update changes the attribute '{name}'")
        elif old is None:
            self._variants.append(_Variant(sizes, log, result, self._owner))
        elif log.equals(old.log):
            old.check = 2 * old.calls or FIRST_CHECK
            old.replay = old.replay or old.log.function()
        elif old.replay is not None or old.records >= MOST_RECORDS:
            self._give_up("its updates differ from call to call")
        else:
            new = _Variant(sizes, log, result, self._owner)
            new.records = old.records + 1
            self._variants[self._variants.index(old)] = new
        return result

    def _give_up(self, reason: str) -> None:
        """Replay no updates from now on."""
        self.reset()
        self.why = reason
