"""Numbers in the info of an episode's last step, which are recorded as curves."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

LEFT_OUT = frozenset({"TimeLimit.truncated", "reward", "terminated", "truncated", "elapsed_step", "env_id"})
"""Keys from Gymnasium's wrappers and from EnvPool that do not describe the episode."""

MOST = 64
"""Maximum number of recorded values per episode."""


def numbers(info: Any) -> dict[str, float]:  # Any: whatever the environment returned
    """Return the first MOST finite numbers and booleans of an info, by name.

    Names in LEFT_OUT and names that start with an underscore (flags of vector environments) are skipped, and so are all
    values that are not scalars, such as the mappings `episode` and `final_info`.
    """
    found: dict[str, float] = {}
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(name, str) or name.startswith("_") or name in LEFT_OUT or not name.isprintable():
            continue
        number = _number(value)
        if number is not None and math.isfinite(number) and len(found) < MOST:
            found[name] = number
    return found


def _number(value: Any) -> float | None:
    """Return a scalar as a float, or None for any other value."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:  # an int too large for a float
        return None
