"""drl_cli/utils/gpu.py: what torch says of the GPUs, asked in a child process, with fake GPUs."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import drl_cli
from drl_cli.utils import gpu
from drl_cli.utils.gpu import SIDE, Gpu


@pytest.mark.parametrize("file", [*gpu.DRIVERS, None])
@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True), ("cuda:1", True), ("auto", None)])
def test_auto_may_be_a_gpu_where_there_is_a_driver(monkeypatch, device, expected, file):
    monkeypatch.setattr("pathlib.Path.exists", lambda path: str(path) == file)
    assert gpu.expects_gpu(device) is ((file is not None) if expected is None else expected)


def test_each_gpu_has_its_name_and_its_problem():
    found = gpu.told([2, ["H200", ""], ["K80", "no kernel image"]], "", None)
    assert found == (Gpu("0", "H200"), Gpu("1", "K80", "no kernel image"))


@pytest.mark.parametrize(
    ("visible", "ids"), [("2,5", ["2", "5"]), ("GPU-a,GPU-b,GPU-c", ["GPU-a", "GPU-b"]), ("", ["0", "1"])]
)
def test_a_gpu_is_named_as_the_user_made_it_visible(visible, ids):
    assert [one.id for one in gpu.told([2, ["H200", ""], ["H200", ""]], "", visible)] == ids


def test_gpus_after_the_one_that_ends_the_trial_are_not_usable(caplog):
    late = "no answer within 60 s"
    assert gpu.told([3, ["H200", ""]], late, None)[1:] == (Gpu("1", "GPU 1", late), Gpu("2", "GPU 2", late))
    assert gpu.told([], "ImportError: libtorch is gone", None) == ()
    assert caplog.messages == ["torch could not be asked about GPUs: ImportError: libtorch is gone"]


@pytest.mark.parametrize(
    ("code", "lines", "end"),
    [
        ("print(1); print('[2]')", [1, [2]], "the trial ended with exit code 0"),
        ("import sys; print(1, flush=True); sys.exit('first\\nCUDA error')", [1], "CUDA error"),
        ("import os; print(1, flush=True); os.abort()", [1], "the trial ended with exit code -6"),
        ("import signal; print(1, flush=True); signal.pause()", [1], "no answer within 1 s"),
    ],
)
def test_what_a_child_told_counts_however_it_ends(code, lines, end):
    assert gpu.ask([sys.executable, "-c", code], 1.0) == (lines, end)


class Product:
    def __init__(self, total):
        self.total = total

    def __matmul__(self, other):
        return self

    def sum(self):
        return self.total


class FakeTorch:
    """A torch with GPUs that give these sums of a product, or raise these errors."""

    def __init__(self, *gpus, is_available=True):
        self.gpus = gpus
        self.cuda = SimpleNamespace(
            is_available=lambda: is_available,
            device_count=lambda: len(gpus),
            get_device_name=lambda index: f"H{index}",
        )

    def ones(self, rows, columns, device):
        assert (rows, columns) == (SIDE, SIDE)
        result = self.gpus[int(device.removeprefix("cuda:"))]
        if isinstance(result, Exception):
            raise result
        return Product(result)


def test_a_trial_product_shows_whether_torch_can_use_a_gpu():
    old = RuntimeError("CUDA error: no kernel image is available\nCUDA kernel errors might be ...")
    full = RuntimeError("CUDA out of memory.")
    found = [*gpu.answers(FakeTorch(SIDE**3, old, full, AssertionError(), SIDE**3 + 1, SIDE**3))]
    assert found == [
        6,
        ("H0", ""),
        ("H1", "CUDA error: no kernel image is available"),
        ("H2", "CUDA out of memory."),
        ("H3", "AssertionError"),
        ("H4", "the sum of a product is 262145, not 262144"),
        ("H5", ""),
    ]
    assert [*gpu.answers(FakeTorch(SIDE**3, is_available=False))] == [0]


@pytest.mark.slow
def test_asking_does_not_initialise_cuda_here(tmp_path, monkeypatch, caplog):
    """The child is a new process, in which a file of the current folder is not in place of torch."""
    (tmp_path / "torch.py").write_text("raise SystemExit('not torch')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fork", lambda: pytest.fail("forked"))
    gpu.gpus.cache_clear()
    found = gpu.gpus()
    assert gpu.gpus() is found  # it is asked once
    assert "not torch" not in caplog.text
    assert caplog.text == ""
    torch = sys.modules.get("torch")
    assert torch is None or not torch.cuda.is_initialized()
    assert torch is None or len(found) == torch.cuda.device_count()


def test_only_this_module_asks_torch_about_gpus():
    root = Path(drl_cli.__file__).parent
    asks = re.compile(r"torch\.cuda\b|\bcuda\.(is_available|device_count|init)\b")
    assert [str(path) for path in root.rglob("*.py") if asks.search(path.read_text())] == [gpu.__file__]
