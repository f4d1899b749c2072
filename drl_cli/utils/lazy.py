"""Import `torch` at its first use: the import takes seconds and 200 MB, and error messages do not need `torch`."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """A placeholder for the module `name` that imports the module at the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    torch = LazyModule("torch")
    Tensor = Any  # for type annotations only
