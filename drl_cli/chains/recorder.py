"""Recorder: notes the tensor operations that an update calls while it runs. It is the base class of Tape and Log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from drl_cli.chains import operations
from drl_cli.chains.counts import Path, Probe
from drl_cli.chains.memory import Unreadable
from drl_cli.chains.present import present

aten = torch.ops.aten
HOST = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__}
"""Methods of tensors that give values to Python without an operation that the recorder would see."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base class of `Tape` and `Log`, a context manager. It sees all tensor operations in its `with` block.

    `counts` are probes, with which the update is called. `path` has the conditions on the counts that the update's
    Python code has evaluated.
    """

    wants_plain: bool
    """Whether an optimizer has to make its step with simple operations, which can be compiled."""

    def __init__(self, counts: Any = ()) -> None:  # Any: a NamedTuple of integers
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self._counts = Path(), counts
        self.counts = counts and type(counts)._make(Probe.of(self.path, i, n) for i, n in enumerate(counts))
        self.reason: str | None = None
        """The reason why the update could not be recorded, or None."""
        self._watch = _Watch(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because otherwise torch would import torch._dynamo, which takes over a second."""
        return False

    def __enter__(self) -> Self:
        present.recorders.append(self)  # type: ignore[arg-type]
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._watch.__exit__(*error)  # type: ignore[no-untyped-call]
        present.recorders.pop()

    def fail(self, reason: str) -> None:
        """Note why the update cannot be recorded, with the line. The update goes on without a record."""
        self.reason = self.reason or f"{operations.line()}: {reason}"

    @contextmanager
    def guarded(self, what: Any) -> Iterator[None]:
        """Return a context manager that notes an error as the reason why there is no record. The update goes on."""
        try:
            yield
        except Unreadable as error:
            self.fail(f"{what}: {error}")
        except Exception as error:
            self.fail(f"{what} cannot be recorded: {error!r}")

    def refuse_values(self, func: Any, args: Any) -> bool:
        """Return whether an operation gives values of tensors to Python. If so, note it as the reason for no record."""
        if func in (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default):
            self.fail("the update needs the value of a tensor in Python")
            return True
        is_dynamic = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        if is_dynamic and (func is not aten.index.Tensor or operations.has_mask(args[1])):
            self.fail(f"{func}: the result's size depends on values")
            return True
        return False


class _Watch(TorchFunctionMode):
    """Sees calls that the recorder does not see: reads of a tensor's values into Python, and of a count by torch."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in HOST:
            self.recorder.fail(f"Tensor.{func.__name__}: the update needs the value of a tensor in Python")
        values: list[Any] = [args, kwargs]
        tree_map_only(slice, lambda part: values.append((part.start, part.stop, part.step)), (args, kwargs))
        tree_map_only(Probe, Probe.note_value, values)  # torch would read the number without a trace
        return func(*args, **(kwargs or {}))
