import importlib
from types import SimpleNamespace

import pytest

from drl_cli.utils.torch_ops import keep_headers_in


@pytest.fixture
def inductor(monkeypatch):
    """torch's modules, whose attributes the test may change."""
    from torch._inductor import codecache, config

    if hasattr(codecache, "_HEADER_DIR"):
        for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
            monkeypatch.setattr(codecache, name, getattr(codecache, name))
    return codecache, config


def test_headers_are_compiled_in_the_private_folder(inductor, tmp_path):
    codecache, _ = inductor
    if not hasattr(codecache, "_HEADER_DIR"):
        pytest.skip("a torch with another place for headers")
    keep_headers_in(tmp_path)
    places = (codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR)
    assert places == (str(tmp_path / "precompiled_headers"), str(tmp_path / "precompiled_headers" / "locks"))


def test_a_torch_with_another_place_for_headers_precompiles_none(monkeypatch, tmp_path):
    config = SimpleNamespace(cpp_cache_precompile_headers=True, aot_inductor=SimpleNamespace(precompile_headers=True))
    importlib.import_module("torch._inductor.codecache")  # monkeypatch replaces only what is imported
    monkeypatch.setattr("torch._inductor.codecache", SimpleNamespace())
    monkeypatch.setattr("torch._inductor.config", config)
    keep_headers_in(tmp_path)
    assert [config.cpp_cache_precompile_headers, config.aot_inductor.precompile_headers] == [False, False]
    monkeypatch.setattr("torch._inductor.config", SimpleNamespace(aot_inductor=SimpleNamespace()))
    keep_headers_in(tmp_path)
