"""Schedules: values that change during a run, as functions of the number of steps or updates."""


def linear(count: int, start: float, end: float, length: int) -> float:
    """Interpolate linearly from `start` at count 0 to `end` at count `length`; larger counts give `end`."""
    return end if count >= length else start + (end - start) * (count / length)


def multiple_after(env_steps: int, period: int) -> int:
    """Return the first multiple of `period` that is larger than `env_steps`."""
    return period * (env_steps // period + 1)
