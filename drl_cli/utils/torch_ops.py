"""What torch needs of the process it learns in."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from drl_cli.utils.lazy import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch uses one thread inside, and as many as before afterwards: a trainer may live in the same process."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next update; giving it back costs a page fault per 4 KB.

    At 256 rows and 256 units that is a fifth of an update. Libraries without glibc's mallopt go on as they are.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 2**28)
        mallopt(mmap_threshold, 2**25)
