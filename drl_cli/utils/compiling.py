"""Since when this process waits for a compiler, which may take a minute. The display of the run says it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Wait:
    since: float | None = None  # [s since the epoch]


@contextmanager
def waiting_for_compiler() -> Iterator[None]:
    """Note that this process waits for a compiler inside the `with` statement."""
    _Wait.since = time.time()
    try:
        yield
    finally:
        _Wait.since = None


def compiler_since() -> float | None:
    """Return since when this process waits for a compiler [s since the epoch], or None. Any thread may call this."""
    return _Wait.since
