"""Values that change over a run, as functions of a count."""


def linear(count: int, start: float, end: float, length: int) -> float:
    """Return the value at `count` of a straight line from `start` at 0 to `end` at `length`; `end` after that."""
    return end if count >= length else start + (end - start) * (count / length)


def multiple_after(env_steps: int, period: int) -> int:
    """Return the first multiple of `period` that is larger than `env_steps`."""
    return period * (env_steps // period + 1)
