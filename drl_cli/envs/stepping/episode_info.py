"""What an environment says of an episode that ended: the numbers in the last step's info."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

LEFT_OUT = frozenset({"TimeLimit.truncated", "reward", "terminated", "truncated", "elapsed_step", "env_id"})
"""What Gymnasium's wrappers and EnvPool put there of every step, and who reads it knows already."""

MOST = 64
"""Numbers of one episode that are taken: each is a curve of its own."""


def numbers(info: Any) -> dict[str, float]:  # Any: whatever a user's environment gives
    """The finite numbers and booleans of an info by name, scalars alone; at most MOST.

    Not those of vector environments that say which entries are there (`_name`), and none of LEFT_OUT. What
    RecordEpisodeStatistics adds, `episode`, is a mapping, as `final_info` is, and no scalar.
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
    """A scalar as a float; None for all else."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats
        return None
