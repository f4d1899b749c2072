"""key=value arguments of drl-train, changed."""

from collections.abc import Sequence


def overridden(command: Sequence[str], *changes: str) -> list[str]:
    """The arguments with these `key=value` in place of what was said of the same keys; they come last."""
    keys = {change.partition("=")[0] for change in changes}
    return [*(arg for arg in command if arg.partition("=")[0].lstrip("+~") not in keys), *changes]
