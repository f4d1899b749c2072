"""The formats of drl-export, and which policies can be exported."""

import importlib.util
from typing import Literal

from drl_cli.algos.base import Policy
from drl_cli.algos.function_policy import FunctionPolicy
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.errors import UsageError

Format = Literal["onnx", "torch", "numpy"]
FILES: dict[Format, str] = {"onnx": "policy.onnx", "torch": "policy.pt2", "numpy": "policy.safetensors"}
SOURCE = "network.py"
"""The numpy source of an export with format=numpy, beside its arrays."""
LOAD = "use drl_cli.load"


class NotExported(UsageError):
    """Raised if a format can't represent a policy. The message gives the reason."""


def formats_of(policy: type[Policy]) -> tuple[Format, ...]:
    """Return the formats that may represent policies of this class: all, or none if it acts in its own way.

    Whether a format has all operations of a network is only known when the policy is exported.
    """
    acts_by_modules = issubclass(policy, TorchPolicy) and policy.greedy in (TorchPolicy.greedy, FunctionPolicy.greedy)
    return ("numpy", "torch", "onnx") if acts_by_modules else ()


def not_exported(policy: type[Policy]) -> str | None:
    """Return a line that names what an export of this policy lacks, or None if it is complete."""
    if not issubclass(policy, TorchPolicy) or policy.prior is TorchPolicy.prior:
        return None
    name = f"{policy.__module__}.{policy.__name__}"
    return f"the search of {name} is not exported: the file acts by its prior; {LOAD} in Python to search"


def has_onnx() -> bool:
    return all(map(importlib.util.find_spec, ("onnxscript", "onnxruntime")))


def check(policy: type[Policy], format: Format) -> None:
    """Raise NotExported if policies of this class can't be exported. Build no network and no environment."""
    if format in formats_of(policy):
        return
    name = f"{policy.__module__}.{policy.__name__}"
    base = "derive it from TorchPolicy (docs/add-an-algorithm.md)"
    raise NotExported(
        f"format={format}: {name} has its own greedy(), which can't be exported: {base}, or {LOAD} in Python"
    )
