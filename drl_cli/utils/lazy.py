"""`torch`, imported at its first use: the import costs seconds and 200 MB, and error messages do not need it."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """Stands for the module `name`, and imports it at the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:  # Any: the attributes of a module have no common type
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    torch = LazyModule("torch")
    Tensor = Any  # for annotations
