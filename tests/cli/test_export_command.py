import json
import subprocess
import sys

import numpy as np
import pytest

import drl_cli
from drl_cli.algos.off_policy import sac
from drl_cli.cli import export as command
from drl_cli.cli.export import Options, export
from drl_cli.deploy import graph
from drl_cli.errors import UsageError

WITHOUT_PACKAGE = """
import sys
for name in ("drl_cli", "torch", "gymnasium", "safetensors"):
    sys.modules[name] = None  # importing it fails
from policy import Policy
policy = Policy(".")
print(policy([1, 0, 0.5]).tolist(), policy([[1, 0, 0.5]] * 3).shape)
"""


@pytest.mark.slow
def test_a_numpy_policy_needs_only_numpy(copied, drl_here):
    done = drl_here("export", "episodes=5")
    assert (done.returncode, done.stderr) == (0, "")
    best = (copied / "checkpoints" / "best").readlink().name
    folder = copied / "export" / f"numpy-{best}"
    assert f"export/numpy-{best}" in done.stdout
    assert "1,000 observations" in done.stdout
    names = ["network.py", "policy.py", "policy.safetensors", "spec.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    spec = json.loads((folder / "spec.json").read_text())
    assert spec["checkpoint"] == best
    assert (spec["inputs"][0]["shape"], spec["outputs"][0]["low"], spec["outputs"][0]["high"]) == ([3], -2.0, 2.0)
    assert spec["parity"]["observations"] == 1000
    assert spec["parity"]["largest_difference"] <= 1e-5
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE], cwd=folder, env={}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    values, shape = done.stdout.split("] ")
    assert shape == "(3, 1)\n"
    expected = drl_cli.load(str(copied))(np.array([1, 0, 0.5]))
    np.testing.assert_allclose(json.loads(values + "]"), expected, rtol=1e-5)


def test_a_policy_that_differs_is_not_kept(copied, monkeypatch):
    monkeypatch.setattr("drl_cli.deploy.export.LEAST_OBSERVATIONS", 50)
    export(Options(run=str(copied), episodes=2))
    (folder,) = (copied / "export").iterdir()
    before = (folder / "spec.json").read_text()

    def larger(*args):
        source, arrays = write(*args)
        return source, {**arrays, "parameters": 1.01 * arrays["parameters"]}

    write = graph.numpy_source
    monkeypatch.setattr(graph, "numpy_source", larger)
    with pytest.raises(UsageError, match=r"not the run's: its actions are up to .* off, 1e-05 are allowed") as caught:
        export(Options(run=str(copied), episodes=2))
    assert (caught.value.exit_code, list((copied / "export").iterdir())) == (1, [folder])
    assert (folder / "spec.json").read_text() == before


@pytest.mark.slow
def test_every_checkpoint_has_its_own_folder(copied, monkeypatch):
    monkeypatch.setattr("drl_cli.deploy.export.LEAST_OBSERVATIONS", 50)
    for checkpoint in ("best", "last", "last"):
        export(Options(run=str(copied), checkpoint=checkpoint, episodes=1))
    names = {(copied / "checkpoints" / link).readlink().name for link in ("best", "last")}
    assert {path.name for path in (copied / "export").iterdir()} == {f"numpy-{name}" for name in names}


def test_missing_packages_are_named_before_the_run_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "has_onnx", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'drl-cli\[onnx\]'") as caught:
        export(Options(run="nope", format="onnx"))
    assert caught.value.exit_code == 3


def test_a_policy_that_has_no_such_format_is_refused_before_the_environment_is_made(copied, monkeypatch):
    monkeypatch.setattr(sac.Policy, "greedy", lambda *args: None)
    monkeypatch.setattr(command, "open_step", lambda *args: pytest.fail("the policy was opened"))
    with pytest.raises(UsageError, match=r"^format=numpy: drl_cli\..*\.Policy has its own greedy\(\)") as caught:
        export(Options(run=str(copied)))
    assert caught.value.exit_code == 2
