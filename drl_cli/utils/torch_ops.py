"""What torch needs of the process it learns in."""

import ctypes


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next update; giving it back costs a page fault per 4 KB.

    At 256 rows and 256 units that is a fifth of an update. Libraries without glibc's mallopt go on as they are.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 2**28)
        mallopt(mmap_threshold, 2**25)
