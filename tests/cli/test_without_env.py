"""A policy that learned from data without an environment: it is evaluated elsewhere, exported and loaded."""

import json
import shutil

import numpy as np
import pytest

import drl_cli
from drl_cli.cli import eval as evaluate
from drl_cli.cli import play, record
from drl_cli.cli.export import Options, export
from drl_cli.cli.train import answer
from drl_cli.errors import UsageError
from drl_cli.run_folder.saved_run import read_json
from drl_cli.runs.end_text import end_text
from drl_cli.utils.shown import relative_path

pytestmark = pytest.mark.slow

WORDS = (
    *("mode=offline", "data=my.npz", "algo=bc", "total_updates=20", "network.hidden=[8]", "trainer.batch_size=32"),
    *("debug.in_process=true", "logger.tensorboard=false", "trainer.compile=false"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a dataset of no known environment, with Pendulum's observations and actions within [-1, 1]."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    obs, ends, zeros = rng.standard_normal((400, 3)).astype(np.float32), np.zeros(400, bool), np.zeros(400)
    ends[99::100] = True
    arrays = {"observations": obs, "actions": np.tanh(obs[:, :1]), "rewards": zeros, "terminations": zeros > 0}
    np.savez(folder / "my.npz", **arrays, truncations=ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert answer([*WORDS]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the run, in a folder without the dataset."""
    shutil.copytree(trained / "outputs", tmp_path / "outputs", symlinks=True)
    monkeypatch.chdir(tmp_path)
    (found,) = tmp_path.glob("outputs/*/*/*")
    return found


def test_it_is_loaded_with_the_spaces_of_the_dataset(run):
    policy = drl_cli.load("latest")
    action = policy(np.array([3, 0, 0], np.float32))
    assert (action.shape, action.dtype, bool(abs(action[0]) <= 1)) == ((1,), np.float32, True)
    for damaged in ('{"x": 1}', '{"observations": "os:system", "actions": "os:system"}'):
        (run / "spaces.json").write_text(damaged)
        with pytest.raises(UsageError, match=r"spaces.json is damaged: ") as caught:
            drl_cli.load("latest")
        assert caught.value.exit_code == 8
    (run / "spaces.json").unlink()
    with pytest.raises(UsageError, match=r"no environment \(env=none\), and has no spaces.json; say env=ID"):
        drl_cli.load("latest")


def test_the_end_of_the_run_recommends_what_works_without_an_environment(run):
    text = end_text(read_json(run / "summary.json"), run)
    assert f"next: drl-export run={relative_path(run)}" in text
    assert not {"drl-eval", "drl-play"} & {*text.split()}


def test_it_is_exported_and_compared_on_random_observations(run, capsys):
    assert export(Options("latest")) == 0
    assert "because the run had no environment" in capsys.readouterr().out
    (spec,) = run.glob("export/numpy-*/spec.json")
    assert json.loads(spec.read_text())["env"] == "none"


def test_it_is_evaluated_in_the_environment_that_the_user_names(run, capsys):
    assert evaluate.evaluate_all(*evaluate.read(["latest", "env=Pendulum-v1", "episodes=2"])) == 0
    assert "(20 updates, greedy, in Pendulum-v1)" in capsys.readouterr().out
    result = json.loads((run / "eval.json").read_text())
    assert (result["env"], result["length_mean"]) == ("Pendulum-v1", 200.0)
    with pytest.raises(UsageError, match="there is none to act in; say env=ID"):
        evaluate.evaluate_all(*evaluate.read(["latest"]))
    with pytest.raises(UsageError, match=r"env=CartPole-v1: its observations are others than those of 2"):
        evaluate.evaluate_all(*evaluate.read(["latest", "env=CartPole-v1"]))
    with pytest.raises(UsageError, match="there is none to act in; say env=ID"):
        play.answer(play.Options("latest"))


def test_its_actions_keep_the_units_of_the_dataset(run, capsys):
    assert record.answer(record.Options(run="latest", env="Pendulum-v1", episodes=1, output="out.npz")) == 0
    policy = drl_cli.load("latest")
    with np.load("out.npz") as found:
        assert found["actions"] == pytest.approx(policy(found["observations"][:200]), abs=1e-5)


def test_it_resumes_with_the_dataset_where_it_was_or_beside_the_run(run, trained, tmp_path, capsys):
    words = [f"resume={run}", "dry_run=true", "total_updates=30"]
    assert answer([*words]) == 0
    (trained / "my.npz").rename(tmp_path / "my.npz")
    try:
        assert answer([*words]) == 0
        (tmp_path / "my.npz").rename(tmp_path / "other.npz")
        with pytest.raises(UsageError, match=rf"no dataset {trained}/my.npz, and no my.npz in {run} or the folders"):
            answer([*words])
        assert answer([*words, "data=other.npz"]) == 0
    finally:
        (tmp_path / "other.npz").rename(trained / "my.npz")
