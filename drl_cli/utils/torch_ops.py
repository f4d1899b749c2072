"""Settings for torch in this process: threads and memory."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drl_cli.utils.lazy import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the `with` block. Afterwards, restore the previous number of threads."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


@contextmanager
def no_subnormals() -> Iterator[None]:
    """Treat numbers below 1.2e-38 as 0 in this thread inside the `with` block, if the processor can.

    The moments of Adam decay to such numbers where a gradient stays 0, as in the weights of a relu that is never
    active. Each operation with them takes about a hundred times as long.
    """
    can = torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if can:
            torch.set_flush_denormal(False)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for later use, instead of returning the memory to the operating system.

    The first use of each new 4 KB of memory causes a page fault. With batches of 256 rows and 256 hidden units, page
    faults took a fifth of the time of an update. Without glibc, this function has no effect.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 2**28)
        mallopt(mmap_threshold, 2**25)


def keep_headers_in(folder: Path) -> None:
    """Have torch precompile C++ headers in this folder. Its own folder is in /tmp, where other users may put files.

    A compiler that reads a precompiled header of somebody else builds libraries with foreign code. A torch that has
    another place for them precompiles no headers.
    """
    from torch._inductor import codecache, config

    if hasattr(codecache, "_HEADER_DIR"):
        headers = folder / "precompiled_headers"
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
        return
    for place, name in ((config, "cpp_cache_precompile_headers"), (config.aot_inductor, "precompile_headers")):
        if hasattr(place, name):
            setattr(place, name, False)
