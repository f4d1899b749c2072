"""`torch`, imported at its first use: it costs seconds and 200 MB, and workers and error messages need neither."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """Stands for the module of the same name; imports it at the first attribute access."""

    def __getattr__(self, name: str) -> Any:  # Any: what a module holds is not known before it is imported
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch as torch
else:
    torch = LazyModule("torch")
