import json
import re
import subprocess
import sys

import numpy as np
import pytest
import yaml

import drl_cli
from drl_cli.cli import export as command
from drl_cli.cli.export import Options, export
from drl_cli.deploy import hub
from drl_cli.deploy.hub import card, metadata
from drl_cli.envs.faults import CantRender
from drl_cli.errors import UsageError

RESULTS = {"env": "my_env:Ünit", "algo": "sac", "env_steps": 3000, "mean": 12.34, "std": 1.5}
RESULTS |= {"episodes": 7, "date": "2026-01-02"}
WITH_NUMPY_ONLY = """
import sys
for name in ("drl_cli", "torch", "gymnasium", "safetensors"):
    sys.modules[name] = None  # importing it fails
from policy import Policy
print(Policy(".")([1, 0, 0.5]).tolist())
"""


@pytest.fixture
def quick(monkeypatch):
    """Compare exports on few observations, without ONNX and without a video."""
    monkeypatch.setattr("drl_cli.deploy.export.LEAST_OBSERVATIONS", 50)
    monkeypatch.setattr(hub, "has_onnx", lambda: False)

    def no_video(*args):
        raise CantRender("it has no screen")

    monkeypatch.setattr(hub, "record", no_video)


@pytest.mark.slow
def test_a_stranger_runs_the_folder_with_and_without_drl_cli(copied, quick, tmp_path, capsys):
    export(Options(run=str(copied), format="hub", episodes=2, license="mit"))
    (made,) = (copied / "export").iterdir()
    assert made.name.startswith("hub-step_")
    out = capsys.readouterr().out
    assert "no video: it has no screen" in out
    assert "no ONNX: it needs  pip install 'drl-cli[onnx]'" in out
    assert f"hf upload YOUR_NAME/sac-Pendulum-v1 outputs/Pendulum-v1/sac-async/{copied.name}/export/{made.name}" in out
    assert "licence" not in out
    expected = drl_cli.load(str(copied))(np.array([1, 0, 0.5]))
    folder = made.rename(tmp_path / "elsewhere")
    done = subprocess.run([sys.executable, "-c", WITH_NUMPY_ONLY], cwd=folder, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=1e-5)
    np.testing.assert_array_equal(drl_cli.load(str(folder))(np.array([1, 0, 0.5])), expected)
    results = json.loads((folder / "results.json").read_text())
    assert len(results["returns"]) == len(results["seeds"]) == results["episodes"] == 2
    assert results["mean"] == pytest.approx(np.mean(results["returns"]))
    assert results["std"] == pytest.approx(np.std(results["returns"]))
    assert not list(tmp_path.rglob(".hub*"))


def test_the_folder_names_neither_the_machine_nor_its_paths(copied, quick, tmp_path):
    export(Options(run=str(copied), format="hub", episodes=1))
    (folder,) = (copied / "export").iterdir()
    host = json.loads((copied / "run.json").read_text())["host"]
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".yaml", ".md"):
            text = path.read_text()
            assert str(tmp_path) not in text, path
            assert f'"{host}"' not in text, path
    assert yaml.safe_load((folder / "config.yaml").read_text())["output_dir"] == "outputs"


def test_the_returns_are_those_of_drl_eval(copied, quick):
    from drl_cli.cli.eval import Options as EvalOptions
    from drl_cli.cli.eval import evaluate

    export(Options(run=str(copied), format="hub", episodes=3))
    (folder,) = (copied / "export").iterdir()
    returns = json.loads((folder / "results.json").read_text())["returns"]
    np.testing.assert_allclose(returns, evaluate(copied, EvalOptions(episodes=3), {})["returns"], rtol=1e-4)


def test_a_card_without_policy_py_and_video_does_not_name_them():
    whole, bare = card(RESULTS, "replay.mp4", True), card(RESULTS, None, False)
    assert "replay.mp4" in whole
    assert "policy.py" in whole
    assert "policy.py" not in bare
    assert "shows the first episode" not in bare
    for text in (whole, bare):
        assert "| 12.3 | 1.5 | 7 | 2026-01-02 |" in text
        assert "3,000 environment steps" in text


def test_the_head_of_the_card_has_what_hubs_read():
    head = metadata(RESULTS, "apache-2.0")
    assert head["license"] == "apache-2.0"
    assert {"reinforcement-learning", "my_env:Ünit", "sac"} <= {*head["tags"]}
    (model,) = head["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "my_env:Ünit", "type": "my_env:Ünit"}
    assert result["metrics"][0] | {"type": "mean_reward", "value": "12.3 +/- 1.5"} == result["metrics"][0]
    assert "license" not in metadata(RESULTS, None)


def test_a_licence_is_for_the_hub_only(copied, monkeypatch):
    monkeypatch.setattr(command, "open_step", lambda *args: pytest.fail("the policy was opened"))
    with pytest.raises(UsageError, match="license=mit is for the model card of format=hub") as caught:
        export(Options(run=str(copied), license="mit"))
    assert caught.value.exit_code == 2


def test_a_run_without_an_environment_has_no_returns_to_show(copied):
    text = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(re.sub(r"^  (name|id): Pendulum-v1$", r"  \1: none", text, flags=re.MULTILINE))
    with pytest.raises(UsageError, match="format=hub has returns in its model card, and the run had no environment"):
        export(Options(run=str(copied), format="hub"))
    assert not (copied / "export").exists()
