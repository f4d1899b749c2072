import pytest

from drl_cli.utils.machine import expects_gpu


@pytest.mark.parametrize("has_driver", [True, False])
@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True), ("cuda:1", True), ("auto", None)])
def test_auto_is_a_gpu_where_there_is_a_driver(monkeypatch, device, expected, has_driver):
    monkeypatch.setattr("pathlib.Path.exists", lambda path: has_driver and str(path) == "/proc/driver/nvidia/version")
    assert expects_gpu(device) is (has_driver if expected is None else expected)
