"""Find the network of an exported policy."""

from drl_cli.algos.base import Policy
from drl_cli.networks.head import Head

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
