"""Flat parameters, the fused Adam on them, saving and loading."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from drl_cli.utils.group import Context
from drl_cli.utils.torch_ops import Adam, FlatParams, load_tensors, save_tensors

CPU = torch.device("cpu")


def test_parts_are_views_in_the_order_given():
    params = FlatParams(CPU, first=2, second=3)
    params["second"].flat[0], params["first"].grad[1] = 7.0, 8.0
    assert params.flat.tolist() == [0, 0, 7, 0, 0]
    assert params.grad.tolist() == [0, 8, 0, 0, 0]


@pytest.mark.parametrize("lrs", [{"a": 3e-3, "b": 3e-3, "c": 3e-3}, {"a": 3e-3, "b": 1e-2, "c": 3e-3}])
@pytest.mark.parametrize("max_norm", [None, 30.0])
@pytest.mark.parametrize("skips", [False, True])
def test_adam_equals_torch_optim(lrs, max_norm, skips):
    """Gradients of 50 numbers, up to about 10 each: half of them are longer than 30."""
    generator = torch.Generator().manual_seed(0)
    params = FlatParams(CPU, a=20, b=29, c=1)
    params.flat.copy_(torch.randn(50, generator=generator))
    parts = {name: torch.nn.Parameter(params[name].flat.clone()) for name in lrs}
    ours = Adam(params, lrs, Context(CPU, skips=skips), eps=1e-5, max_norm=max_norm)
    theirs = torch.optim.Adam([{"params": [parts[name]], "lr": lr} for name, lr in lrs.items()], eps=1e-5)
    for i in range(20):
        params.grad.copy_(torch.randn(50, generator=generator) * i / 2)
        for name, part in parts.items():
            part.grad = params[name].grad.clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parts.values(), max_norm)
        assert ours.step(torch.ones(()))
        theirs.step()
    torch.testing.assert_close(params.flat, torch.cat([*parts.values()]).detach(), rtol=0, atol=1e-6)
    assert ours.state()["count"] == 20


@pytest.mark.parametrize("max_norm", [None, 30.0])
@pytest.mark.parametrize(("loss", "value"), [(1.0, float("inf")), (1.0, float("nan")), (float("nan"), 1.0)])
def test_an_update_that_is_not_finite_is_left_out(max_norm, loss, value):
    params = FlatParams(CPU, a=3, b=2)
    optimizer = Adam(params, {"a": 1e-2, "b": 1e-2}, Context(CPU, skips=True), max_norm=max_norm)
    params.grad.fill_(1.0)
    assert optimizer.step(torch.ones(()))
    before = save_tensors({"flat": params.flat} | optimizer.state())
    params.grad.copy_(torch.tensor([1.0, 1.0, 1.0, value, 1.0]))
    assert not optimizer.step(torch.tensor(loss))
    after = {"flat": params.flat} | optimizer.state()
    assert all(torch.equal(before[key], after[key]) for key in before)


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


def test_tensors_are_saved_as_copies_and_loaded_in_place():
    own = {"a": torch.ones(3), "b": torch.zeros(())}
    saved = save_tensors(own)
    own["a"] += 1
    kept = own["a"]
    load_tensors(own, saved)
    assert own["a"] is kept
    assert kept.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="no 'b'"):
        load_tensors(own, {"a": torch.ones(3)})
    with pytest.raises(ValueError, match=r"'a' has shape \(1,\), needed is \(3,\)"):
        load_tensors(own, saved | {"a": torch.ones(1)})
