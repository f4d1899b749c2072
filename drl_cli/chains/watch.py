"""Watch: notes that an update reads the values of a tensor, or of a count, in Python."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from drl_cli.chains.counts import Probe

HOST = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__}
"""Methods that read values without an operation that a dispatch mode sees."""


class Recorder(Protocol):
    """A tape or a log."""

    def fail(self, reason: str) -> None: ...


class Watch(TorchFunctionMode):
    """Tells a tape or a log that an update reads the values of a tensor into numpy or a list."""

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
