"""keep_freed_memory: memory that was freed is used again without page faults."""

import ctypes
import os
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from drl_cli.utils.torch_ops import keep_freed_memory

def faults(updates):  # each update takes and frees 2 MB in arrays of 512 KB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(updates):
        pieces = [np.ones((512, 256), np.float32) for _ in range(4)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(5)
plain = faults(100)
keep_freed_memory()
faults(5)
print(plain, faults(100))
"""


def test_freed_memory_is_kept():
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("no glibc here")
    fixed = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # otherwise the threshold follows earlier frees
    done = subprocess.run([sys.executable, "-c", FAULTS], env=fixed, capture_output=True, text=True, check=True)
    plain, kept = (int(count) for count in done.stdout.split())
    assert kept < 100 < plain
