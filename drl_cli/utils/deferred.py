"""`torch` and `nn` for the files of algorithms: torch is imported at the first use of anything but the stand-ins.

A file can define classes of `nn.Module` and use `torch.Tensor` in annotations, and does not import torch itself. A
process that never calls a module then saves 200 MB and a second. `building` says whether networks are made as torch
modules, or in numpy, for a process without torch.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drl_cli.utils.lazy import LazyModule

if TYPE_CHECKING:
    from torch import Generator


class NotInNumpy(Exception):
    """Raised if a file's networks have no numpy form, because they are other modules than those of drl_cli."""


class Building(threading.local):
    """What the functions that make networks use at present, in this thread.

    `in_numpy`: they return the numpy forms (drl_cli.networks.acting), which act without torch. `encoder` and `heads`
    are the generators that draw the initial weights of encoders and of MLPs; None is torch's default generator.
    """

    in_numpy: bool = False
    encoder: Generator | None = None
    heads: Generator | None = None


present = Building()


@contextmanager
def building(
    *, in_numpy: bool = False, encoder: Generator | None = None, heads: Generator | None = None
) -> Iterator[None]:
    """Set `present` for a `with` block."""
    before = present.in_numpy, present.encoder, present.heads
    present.in_numpy, present.encoder, present.heads = in_numpy, encoder, heads
    try:
        yield
    finally:
        present.in_numpy, present.encoder, present.heads = before


class Deferred(LazyModule):
    """A LazyModule some of whose attributes have stand-ins, which are used until something has imported torch."""

    def __init__(self, name: str, stand_ins: Mapping[str, object]) -> None:
        super().__init__(name)
        self._stand_ins = stand_ins

    def __getattr__(self, name: str) -> Any:
        if "torch" not in sys.modules:
            if name in self._stand_ins:
                return self._stand_ins[name]
            if present.in_numpy:
                raise NotInNumpy(f"{self._name__}.{name}")
        return super().__getattr__(name)


class Module:
    """Stands for torch.nn.Module: a call of a derived class creates an object that is also a torch.nn.Module."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return Absent(cls.__name__) if present.in_numpy else object.__new__(_with_torch(cls))


class Absent:
    """Stands for a torch module if networks are made in numpy. Its use raises NotInNumpy, but a critic is not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise NotInNumpy(f"{self._name} is a torch module")


_derived: dict[type[Any], type[Any]] = {}
"""The classes that `_with_torch` made, so that all objects of a class have one type."""


def _with_torch(cls: type[Any]) -> type[Any]:
    """Return a class that is derived from `cls` and from torch.nn.Module, or `cls` if it is one."""
    base = importlib.import_module("torch.nn").Module
    if issubclass(cls, base):
        return cls
    if cls not in _derived:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        _derived[cls] = type(cls.__name__, (cls, base), names)
    return _derived[cls]


class Tensor:
    """Stands for torch.Tensor in annotations and `isinstance`. Without torch, no object is a tensor."""


if TYPE_CHECKING:
    import torch as torch
    from torch import nn as nn
else:
    nn = Deferred("torch.nn", {"Module": Module, "functional": LazyModule("torch.nn.functional")})
    torch = Deferred("torch", {"Tensor": Tensor, "nn": nn})
