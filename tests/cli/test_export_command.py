"""drl-export, and what stands by itself afterwards."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import drl_cli
from drl_cli.cli import export as command
from drl_cli.cli.export import Options, export
from drl_cli.deploy import check, plan
from drl_cli.deploy.head import Head, find_head
from drl_cli.errors import UsageError

ALONE = """
import sys
for name in ("drl_cli", "torch", "gymnasium", "safetensors"):
    sys.modules[name] = None  # not to be imported
from policy import Policy
policy = Policy(".")
print(policy([1, 0, 0.5]).tolist(), policy([[1, 0, 0.5]] * 3).shape)
"""


@pytest.fixture
def copied(small_run, tmp_path):
    """A copy of the small run."""
    folder = tmp_path / "outputs" / "Pendulum-v1" / "sac-async" / small_run.folder.name
    shutil.copytree(small_run.folder, folder, symlinks=True)
    return folder


@pytest.mark.slow
def test_the_numpy_policy_alone_with_numpy(copied, drl, tmp_path):
    done = drl("export", "episodes=5", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    best = (copied / "checkpoints" / "best").readlink().name
    folder = copied / "export" / f"numpy-{best}"
    assert f"export/numpy-{best}" in done.stdout
    assert "1,000 observations" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["policy.py", "policy.safetensors", "spec.json"]
    spec = json.loads((folder / "spec.json").read_text())
    assert spec["checkpoint"] == best
    assert (spec["inputs"][0]["shape"], spec["outputs"][0]["low"], spec["outputs"][0]["high"]) == ([3], -2.0, 2.0)
    assert spec["parity"]["observations"] == 1000
    assert spec["parity"]["largest_difference"] <= 1e-5
    alone = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=folder, env={}, capture_output=True, text=True, timeout=60
    )
    assert alone.returncode == 0, alone.stderr
    values, shape = alone.stdout.split("] ")
    assert shape == "(3, 1)\n"
    expected = drl_cli.load(str(copied))(np.array([1, 0, 0.5]))
    np.testing.assert_allclose(json.loads(values + "]"), expected, rtol=1e-5)


def test_a_policy_that_differs_is_not_left_there(copied, monkeypatch):
    monkeypatch.setattr(check, "LEAST_OBSERVATIONS", 50)
    right = export(Options(run=str(copied), episodes=2))
    (folder,) = (copied / "export").iterdir()
    before = (folder / "spec.json").read_text()
    monkeypatch.setattr(plan, "find_head", lambda policy: Head([1.01 * array for array in find_head(policy).layers]))
    with pytest.raises(UsageError, match=r"not the run's: its actions are up to .* off, 1e-05 are allowed") as caught:
        export(Options(run=str(copied), episodes=2))
    assert caught.value.exit_code == 1
    assert list((copied / "export").iterdir()) == [folder]
    assert (folder / "spec.json").read_text() == before
    assert len(right) == 2


def test_other_checkpoints_have_folders_of_their_own(copied, monkeypatch):
    monkeypatch.setattr(check, "LEAST_OBSERVATIONS", 50)
    for checkpoint in ("best", "last", "last"):
        export(Options(run=str(copied), checkpoint=checkpoint, episodes=1))
    names = {(copied / "checkpoints" / link).readlink().name for link in ("best", "last")}
    assert {path.name for path in (copied / "export").iterdir()} == {f"numpy-{name}" for name in names}


def test_what_is_missing_is_said_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'drl-cli\[onnx\]'") as caught:
        export(Options(run="nope", format="onnx"))
    assert caught.value.exit_code == 3


def test_wrong_options_are_exit_2_and_help_lists_them(drl, tmp_path):
    done = drl("export", "format=onx", "episodes=0", cwd=tmp_path)
    assert done.returncode == 2
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [" format", " episodes"]
    done = drl("export", "--help", cwd=tmp_path)
    names = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert names == ["run", "format", "checkpoint", "episodes", "output_dir"]
