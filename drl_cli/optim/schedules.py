"""Values that change over the course of a run, as functions of a count."""


def linear(count: int, start: float, end: float, length: int) -> float:
    """From `start` at 0 to `end` at `length`, in a straight line; `end` from there on."""
    return end if count >= length else start + (end - start) * (count / length)


def multiple_after(env_steps: int, period: int) -> int:
    """The first multiple of `period` beyond `env_steps`."""
    return period * (env_steps // period + 1)
