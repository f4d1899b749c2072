"""The formats of drl-export, and which policies can be exported in them."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

from drl_cli.algos.base import Policy
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.errors import UsageError
from drl_cli.networks.config import TORSOS, NetworkConfig
from drl_cli.networks.head import Head

Format = Literal["onnx", "torch", "numpy"]
FILES: dict[Format, str] = {"onnx": "policy.onnx", "torch": "policy.pt2", "numpy": "policy.safetensors"}
LOAD = "use drl_cli.load"


@dataclass(frozen=True)
class Kind:
    """A kind of policy: its name in the table of docs/after-training.md, and the formats that can represent it."""

    name: str
    formats: tuple[Format, ...]


BUILT_IN = Kind("all policies of drl-cli but those below", ("numpy", "torch", "onnx"))
OWN_TORSO = Kind("a policy of drl-cli with your own torso (`network=my_pkg:Torso`)", ("torch", "onnx"))
TRACED = Kind("`flashsac`, or your own `TorchPolicy`", ("torch", "onnx"))
SEARCHES = Kind(
    "a policy that searches: `muzero` ..., or your own `TorchPolicy` that overrides `prior`", ("torch", "onnx")
)
REMEMBERS = Kind("`dreamer`, or your own `TorchPolicy` with a memory", ())
OWN = Kind("your own policy with a method `greedy` or `forward`", ())


def kind_of(policy: type[Policy], network: NetworkConfig) -> Kind:
    """Return the kind of a policy class with this network."""
    if has_head(policy):
        return BUILT_IN if network.torso in TORSOS else OWN_TORSO
    if not issubclass(policy, TorchPolicy) or policy.greedy is not TorchPolicy.greedy:
        return OWN
    if policy.memory_size:
        return REMEMBERS
    return TRACED if policy.prior is TorchPolicy.prior else SEARCHES


def not_exported(policy: type[Policy], network: NetworkConfig) -> str | None:
    """Return a line that names what an export of this policy lacks, or None if it is complete."""
    if kind_of(policy, network) is not SEARCHES:
        return None
    name = f"{policy.__module__}.{policy.__name__}"
    return f"the search of {name} is not exported: the file acts by its prior; {LOAD} in Python to search"


def has_onnx() -> bool:
    """Return whether the packages of the extra onnx are installed."""
    return all(map(importlib.util.find_spec, ("onnxscript", "onnxruntime")))


def check(policy: type[Policy], network: NetworkConfig, format: Format) -> None:
    """Raise UsageError if the format can't represent policies of this class. Build no network and no environment."""
    kind = kind_of(policy, network)
    if format in kind.formats:
        return
    name = f"{policy.__module__}.{policy.__name__}"
    if kind is REMEMBERS:
        reason = f"{name} has a memory (memory_size), which can't be exported; {LOAD} in Python"
    elif kind is OWN:
        base = "derive it from TorchPolicy (docs/add-an-algorithm.md)"
        reason = f"{name} has its own greedy() or forward(), which can't be exported: {base}, or {LOAD} in Python"
    else:
        owner = f"network.torso={network.torso}" if kind is OWN_TORSO else name
        reason = f"{owner} has modules that format={format} can't export; say format=onnx or format=torch"
    raise UsageError(f"format={format}: {reason}")


ACTING = ("build", "choose", "forward", "greedy")
"""The methods by which a policy's network chooses actions."""


def has_head(kind: type[Policy]) -> bool:
    """Return whether `find_head` knows the network of policies of this class.

    A class that overrides how a policy acts, but not `exported_head`, has another network than the head describes.
    """
    for parent in kind.__mro__:
        if "exported_head" in vars(parent):
            return parent is not Policy
        if any(name in vars(parent) for name in ACTING):
            return False
    return False


def find_head(policy: Policy) -> Head | None:
    """Return the head of a policy, or None if its class overrides how it acts."""
    return policy.exported_head() if has_head(type(policy)) else None
