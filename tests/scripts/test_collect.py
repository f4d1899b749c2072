import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "scripts/bench/collect.py"


@pytest.fixture
def collect(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds its own folder
    spec = importlib.util.spec_from_file_location("collect", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("backend", "extra"), [("envpool", "envpool"), ("ale", "atari")])
def test_a_backend_that_is_not_installed_names_its_package(collect, monkeypatch, capsys, backend, extra):
    monkeypatch.setattr(collect, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["collect.py", "--backend", backend])
    with pytest.raises(SystemExit):
        collect.main()
    assert capsys.readouterr().err.endswith(f"--backend {backend} needs a package:  pip install 'drl-cli[{extra}]'\n")
