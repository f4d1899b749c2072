"""What torch needs of its process."""

import ctypes
import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from drl_cli.utils.torch_ops import keep_freed_memory

def updates(num):  # each takes 2 MB in pieces of 512 KB, and frees them
    for _ in range(num):
        pieces = [torch.ones(512, 256) for _ in range(4)]
        del pieces

if sys.argv[1] == "keep":
    keep_freed_memory()
updates(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
updates(100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_kept():
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("no glibc here")
    fixed = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # else it depends on what was freed before
    runs = [
        subprocess.run([sys.executable, "-c", FAULTS, how], env=fixed, capture_output=True, text=True, check=True)
        for how in ("plain", "keep")
    ]
    plain, kept = (int(run.stdout) for run in runs)
    assert kept < 100 < plain
