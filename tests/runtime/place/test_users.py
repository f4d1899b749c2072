"""Errors of the user's code are told apart where the code runs, and keep their class on the way to the main process."""

import logging
import pickle
import re

import pytest
import torch
from handles import by_name

from drl_cli.chains.process_group import PeerLost
from drl_cli.errors import RESOURCES, USER_CODE, AlgorithmFailed, Diverged, OutOfMemory, UserCodeFailed
from drl_cli.runtime.place import ray_runtime
from drl_cli.runtime.place.handles import LocalRuntime, get
from drl_cli.runtime.place.ray_runtime import Host
from drl_cli.utils import outside

SAMPLER = """
class Sampler:
    def __init__(self, call=None):
        self.call = call
        if call == "now":
            raise KeyError("no rows")

    def sample(self):
        return self.call()
"""


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    (tmp_path / "their_rows.py").write_text(SAMPLER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "their_rows", raising=False)
    return outside.import_object("their_rows:Sampler")


class Replay:
    """A role that calls the user's sampler, and fails itself."""

    def __init__(self, sampler, call):
        self.sampler = sampler(call)

    def sample(self):
        return self.sampler.sample()

    def fail(self):
        raise ValueError('a text like a traceback:\n  File "their_rows.py", line 9, in sample')


def raises(error):
    def call():
        raise error

    return call


def test_an_error_of_the_users_code_has_its_class_and_its_line(sampler):
    handle = LocalRuntime().spawn("replay", Replay, sampler, raises(KeyError("rows")), modules=["their", "their_rows"])
    with pytest.raises(UserCodeFailed) as caught:
        get(by_name(handle, "sample"))
    assert re.search(r"^their_rows raised KeyError: 'rows' \(.*\.py:\d+\)$", str(caught.value))
    assert caught.value.exit_code == USER_CODE
    assert type(caught.value.__cause__) is KeyError
    with pytest.raises(UserCodeFailed, match=r"^their_rows raised KeyError: 'no rows'"):
        LocalRuntime().spawn("replay", Replay, sampler, "now", modules=["their_rows"])


@pytest.mark.parametrize("error", [AlgorithmFailed("drift"), Diverged("NaN"), PeerLost("trainer 1")])
def test_errors_that_say_more_stay_as_they_are(sampler, error):
    handle = LocalRuntime().spawn("replay", Replay, sampler, raises(error), modules=["their_rows"])
    with pytest.raises(type(error)) as caught:
        get(by_name(handle, "sample"))
    assert caught.value is error


GPU_FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 139 GiB of which 1 GiB is free. Process 7 has more"
)


@pytest.mark.parametrize("modules", [["their_rows"], []])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            torch.OutOfMemoryError(GPU_FULL),
            r"memory is full: CUDA out .* is free; lower trainer\.batch_size .*device=cpu",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), ".*or say device=cpu"),
        (RuntimeError("CUDA error: out of memory\nCompile with ..."), "memory is full: CUDA error: out of memory; .*"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 40 bytes"), ".*replay.capacity.*"),
        (MemoryError("Unable to allocate 3 GiB"), "memory is full: Unable to allocate 3 GiB; lower replay.capacity.*"),
        (MemoryError(), "memory is full: MemoryError; lower replay.capacity.*"),
    ],
)
def test_full_memory_is_exit_7_with_advice(sampler, error, line, modules):
    handle = LocalRuntime().spawn("replay", Replay, sampler, raises(error), modules=modules)
    with pytest.raises(OutOfMemory) as caught:
        get(by_name(handle, "sample"))
    assert re.fullmatch(line, str(caught.value))
    assert caught.value.exit_code == RESOURCES
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as it travels from a process of Ray
    with pytest.raises(OutOfMemory):
        LocalRuntime().spawn("replay", raises(error), modules=modules)


def test_errors_of_other_code_stay_as_they_are(sampler):
    handle = LocalRuntime().spawn("replay", Replay, sampler, raises(KeyError("rows")), modules=["their_rows"])
    with pytest.raises(ValueError, match="their_rows"):
        get(by_name(handle, "fail"))
    handle = LocalRuntime().spawn("replay", Replay, sampler, raises(KeyError("rows")))
    with pytest.raises(KeyError):
        get(by_name(handle, "sample"))


def test_the_process_of_a_role_raises_the_class_which_can_be_pickled(sampler, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ray_runtime.crashes, "write_crashes", lambda path: None)
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    host = type("replay", (Host,), {"modules": ["their_rows"]})
    calls = host(f"{tmp_path}/a.log", Replay, sampler, raises(KeyError(lambda: 0)))
    begins = host(f"{tmp_path}/b.log", Replay, sampler, "now")
    for role in (calls, begins):
        with pytest.raises(UserCodeFailed, match=r"^their_rows raised KeyError: ") as caught:
            role.call("sample")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is UserCodeFailed
    assert "KeyError" in caplog.text
