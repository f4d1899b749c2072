import ctypes
import itertools
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from drl_cli.utils import lazy, machine
from drl_cli.utils.clock import Waiting, process_start
from drl_cli.utils.machine import free_memory
from drl_cli.utils.ranges import Range
from drl_cli.utils.run_clock import linear
from drl_cli.utils.seeding import ROLES, generator, integers


@pytest.mark.parametrize(
    ("bounds", "text", "inside", "outside"),
    [
        (Range(least=1), ">= 1", (1, 2), (0, 0.999, math.nan)),
        (Range(above=0), "> 0", (1e-9, 5), (0, -1)),
        (Range(least=0, most=1), ">= 0 and <= 1", (0, 0.5, 1), (-0.1, 1.1)),
        (Range(above=0, below=1), "> 0 and < 1", (0.5,), (0, 1, math.nan)),
        (Range(most=3), "<= 3", (-10, 3), (3.1,)),
        (Range(), "", (-1e9, 1e9), ()),
    ],
)
def test_ranges(bounds, text, inside, outside):
    assert str(bounds) == text
    assert all(value in bounds for value in inside)
    assert not any(value in bounds for value in outside)


def test_linear_schedule():
    values = [linear(count, 1.0, 0.05, 1000) for count in (0, 250, 500, 999, 1000, 10**9)]
    assert (values, linear(3, 0.0, 1.0, 4)) == ([1.0, 0.7625, 0.525, pytest.approx(0.05095), 0.05, 0.05], 0.75)


def test_streams_are_distinct_over_seed_role_index_and_incarnation():
    keys = list(itertools.product((0, 1), ROLES, range(3), range(3)))
    states = {tuple(integers(seed, role, 4, index, life)) for seed, role, index, life in keys}
    draws = {float(generator(seed, role, index, life).random()) for seed, role, index, life in keys}
    assert len(states) == len(draws) == len(keys)


def test_streams_are_reproducible():
    assert integers(3, "worker", 3, 1, 2) == integers(3, "worker", 5, 1, 2)[:3]
    assert np.array_equal(generator(3, "replay").random(4), generator(3, "replay").random(4))


def test_integers_fit_libraries_that_take_an_int():
    values = integers(0, "worker", 2000)
    assert len(set(values)) == 2000
    assert all(type(value) is int and 0 <= value < 2**31 for value in values)


def test_waiting_adds_up_idle_spells():
    waiting = Waiting()
    assert waiting.seconds(5.0) == 0.0
    waiting.stop(6.0)
    waiting.start(10.0)
    waiting.start(11.0)
    assert waiting.seconds(12.0) == 2.0
    waiting.stop(13.0)
    waiting.stop(20.0)
    assert waiting.seconds(30.0) == 3.0
    waiting.start(40.0)
    assert waiting.seconds(41.5) == 4.5
    waiting.end(42.0)
    assert waiting.seconds(42.0) == 5.0
    waiting.start(50.0)  # a call that ends after the run
    assert waiting.seconds(42.0) == waiting.seconds(60.0) == 5.0


def test_process_start_is_when_the_process_started():
    """The kernel gives the time of its own start in whole seconds, so the result is exact to a second."""
    before = time.time()
    code = "from drl_cli.utils.clock import process_start; print(process_start())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert before - 1.1 < float(done.stdout) < time.time() + 0.1
    assert process_start() < before


@pytest.mark.slow
def test_torch_is_imported_at_first_use():
    code = """
import sys
from drl_cli.utils.lazy import torch
import drl_cli.losses.policy, drl_cli.losses.value, drl_cli.networks.mlp, drl_cli.utils.torch_ops
assert torch.__name__ == "torch" and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert lazy.torch.float32 is torch.float32
    with pytest.raises(AttributeError):
        _ = lazy.torch.no_such_name


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


@pytest.mark.slow
def test_freed_memory_is_kept():
    """Memory that was freed is used again without page faults."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("no glibc here")
    fixed = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # otherwise the threshold follows earlier frees
    done = subprocess.run([sys.executable, "-c", FAULTS], env=fixed, capture_output=True, text=True, check=True)
    plain, kept = (int(count) for count in done.stdout.split())
    assert kept < 100 < plain


GIB = 2**30


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/a/b", "a", ("memory.max", "memory.current", "inactive_file")),
        ("4:memory:/a/b", "memory/a/b", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_free_memory_of_a_control_group(tmp_path, monkeypatch, line, folder, names):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    free = free_memory()
    (tmp_path / "own").write_text(f"3:cpu:/a\n{line}\n")
    assert free_memory() == pytest.approx(free, rel=0.2)
    limit, used, cached = names
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / limit).write_text(f"{GIB}\n")
    (tmp_path / folder / used).write_text(f"{GIB // 2}\n")
    assert free_memory() == GIB // 2
    (tmp_path / folder / "memory.stat").write_text(f"anon 1\n{cached} {GIB // 4}\n")
    assert free_memory() == 3 * GIB // 4


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["v", "d"])
def test_free_memory_within_a_limit_of_the_process(limit):
    code = "from drl_cli.utils.machine import free_memory; used = bytearray(2**28); print(free_memory())"
    command = f"ulimit -{limit} {2 * GIB // 1024}; exec {sys.executable} -c '{code}'"
    out = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert GIB < int(out) < 2 * GIB - 2**28
