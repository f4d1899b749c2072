import json
import re

import numpy as np
import pytest

import drl_cli
from drl_cli.cli.eval import Options as EvalOptions
from drl_cli.cli.eval import evaluate
from drl_cli.data.open import open_dataset, open_recording
from drl_cli.run_folder.find import read_config
from drl_cli.runs.data_env import with_data_env
from drl_cli.settings.command_line import read_command


def recorded(done):
    """Return the dataset that a command wrote."""
    assert (done.returncode, done.stderr) == (0, "")
    return open_dataset(done.stdout.splitlines()[-1])


def provenance(done):
    return open_recording(done.stdout.splitlines()[-1]).provenance


def test_random_actions_of_an_environment(drl_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = drl_here("record", "env=CartPole-v1", "policy=random", "episodes=20", "output=a.npz")
    dataset = recorded(done)
    facts = dataset.facts
    assert (facts.env, facts.episodes, facts.terminations, facts.truncations) == ("CartPole-v1", 20, 20, 0)
    assert 15 < facts.returns.mean() < 35
    assert np.isclose(dataset.read(0, facts.steps)["action"].mean(), 0.5, atol=0.1)
    counts, returns, path = done.stdout.splitlines()
    assert counts == f"{facts.steps:,} steps in 20 episodes, 20 of them terminated"
    assert returns.startswith(f"return: mean {facts.returns.mean():.1f}  std {facts.returns.std():.1f}  min ")
    assert path == "a.npz"
    source = provenance(done)
    assert (source["policy"], source["seed"], source["return_mean"]) == ("random", 0, facts.returns.mean())
    assert source["steps"] == facts.steps
    assert (source["version"], source["command"][:2]) == (drl_cli.__version__, ["drl-record", "env=CartPole-v1"])
    again = recorded(drl_here("record", "env=CartPole-v1", "policy=random", "episodes=20", "output=b.npz"))
    other = recorded(drl_here("record", "env=CartPole-v1", "policy=random", "episodes=20", "seed=1", "output=c.npz"))
    np.testing.assert_array_equal(again.facts.returns, facts.returns)
    assert not np.array_equal(other.facts.returns, facts.returns)


@pytest.mark.slow
def test_steps_cut_the_last_episode(drl_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = drl_here("record", "env=Pendulum-v1", "steps=450", "max_steps=100", "output=a.npz")
    dataset = recorded(done)
    np.testing.assert_array_equal(dataset.ends, [100, 200, 300, 400, 450])
    rows = dataset.read(0, 450)
    np.testing.assert_array_equal(rows["truncated"].nonzero()[0], [99, 199, 299, 399, 449])
    np.testing.assert_array_equal(rows["next_obs"][:99], rows["obs"][1:100])
    assert not np.array_equal(rows["next_obs"][449], rows["obs"][449])
    whole = recorded(drl_here("record", "env=Pendulum-v1", "episodes=16", "max_steps=100", "output=b.npz"))
    np.testing.assert_array_equal(whole.read(0, 450)["obs"], rows["obs"])
    assert dataset.clamped == 0
    exact = drl_here("record", "env=Pendulum-v1", "steps=400", "max_steps=100", "output=c.npz")
    np.testing.assert_array_equal(recorded(exact).ends, [100, 200, 300, 400])
    assert (provenance(done)["pieces"], provenance(exact)["pieces"]) == ([4], [])


def test_the_policy_of_a_run(copied, drl_here):
    done = drl_here("record", "episodes=3", "output=a.npz")
    dataset = recorded(done)
    assert (dataset.facts.env, dataset.facts.episodes, dataset.facts.truncations) == ("Pendulum-v1", 3, 3)
    best = (copied / "checkpoints" / "best").readlink().name
    manifest = json.loads((copied / "checkpoints" / best / "manifest.json").read_text())
    source = provenance(done)
    assert (source["run"], source["checkpoint"], source["policy"]) == (copied.name, best, "greedy")
    assert source["weights"] == {name: manifest[name] for name in ("env_steps", "opt_steps", "version")}
    rows = dataset.read(0, 600)
    from drl_cli import load

    policy = load(str(copied))
    expected = np.stack([policy(obs) for obs in rows["obs"][:50]])
    np.testing.assert_allclose(rows["action"][:50] * 2, expected, atol=1e-5)
    mean = evaluate(copied, EvalOptions(episodes=3), {})["mean"]
    assert mean != dataset.facts.returns.mean(), "other episodes than those of drl-eval"
    explored = recorded(drl_here("record", "episodes=1", "stochastic=true", "output=b.npz")).read(0, 50)
    assert not np.allclose(explored["action"], np.stack([policy(obs) for obs in explored["obs"]]) / 2, atol=0.01)
    random = recorded(drl_here("record", "episodes=3", "policy=random", "output=c.npz"))
    assert abs(random.read(0, 600)["action"].mean()) < 0.1
    np.testing.assert_array_equal(random.read(0, 1)["obs"], rows["obs"][:1])


def test_what_the_replay_of_a_run_holds(copied, drl_here):
    done = drl_here("record", "replay=true", "output=a.npz")
    dataset, summary = recorded(done), json.loads((copied / "summary.json").read_text())
    assert dataset.facts.steps == summary["inserts"]
    assert provenance(done)["checkpoint"] == (copied / "checkpoints" / "last").readlink().name
    lengths = np.diff(dataset.ends, prepend=0)
    assert sorted(lengths, reverse=True)[:6] == [20] * 6, "episodes of training end after 20 steps"
    assert provenance(done)["pieces"] == np.flatnonzero(lengths < 20).tolist(), "the run ended within these"
    rows = dataset.read(0, dataset.facts.steps)
    angle, speed = np.arctan2(rows["obs"][:, 1], rows["obs"][:, 0]), rows["obs"][:, 2]
    torque = 2 * rows["action"][:, 0]
    np.testing.assert_allclose(rows["reward"], -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), rtol=1e-3, atol=1e-3)
    inside = np.ones(dataset.facts.steps - 1, bool)
    inside[dataset.ends[:-1] - 1] = False
    np.testing.assert_array_equal(rows["next_obs"][:-1][inside], rows["obs"][1:][inside])


def test_a_dataset_has_the_arguments_of_its_environment_and_a_command_names_those_that_it_lacks(copied, drl_here):
    import yaml

    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["env"]["kwargs"] = {"g": 9.0}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    done = drl_here("record", "episodes=1", "output=a.npz")
    assert provenance(done)["env_kwargs"] == {"g": 9.0}
    words = ["mode=offline", f"data={done.stdout.splitlines()[-1]}"]
    line = "evaluations are without the recording's env.kwargs.g: type it"
    assert with_data_env(read_command(words))[1] == line
    assert with_data_env(read_command([*words, "env.kwargs.g=9"]))[1] is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"algo.n_step": 3}, "algo.n_step=3 holds sums of rewards"),
        ({"replay.rows": "sequences"}, "replay.rows=sequences holds sequences"),
        ({"replay.remover": "random"}, "replay.remover=random mixes the order"),
        ({"env.reward_clip": 1.0}, "env.reward_clip=1 has changed the rewards"),
    ],
)
def test_replays_that_hold_no_steps(copied, drl_here, change, text):
    import yaml

    config = yaml.safe_load((copied / "config.yaml").read_text())
    for key, value in change.items():
        group, name = key.split(".")
        config[group][name] = value
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    read_config(copied)
    done = drl_here("record", "replay=true", "output=a.npz")
    assert done.returncode == 2
    assert f"replay=true: {text}" in done.stderr


def test_a_checkpoint_without_its_replay(copied, drl_here):
    done = drl_here("record", "replay=true", "checkpoint=best", "output=a.npz")
    assert (done.returncode, done.stdout) == (8, "")
    assert "was saved without the replay" in done.stderr


def test_without_output_the_dataset_is_in_the_runs_folder(copied, drl_here, listed):
    pytest.importorskip("h5py", reason="needs drl-cli[minari]")
    best = (copied / "checkpoints" / "best").readlink().name
    done = drl_here("record", "episodes=1")
    assert done.stdout.splitlines()[-1] == f"outputs/Pendulum-v1/sac-async/{copied.name}/data/{best}-1episodes-seed0"
    assert recorded(done).facts.steps == 200
    again = drl_here("record", "episodes=1")
    assert (again.returncode, again.stdout) == (2, "")
    assert "is there already: say another name, or remove it" in again.stderr
    (row,) = [line for line in listed("data") if copied.name in line]
    assert row.split()[1:6] == ["Pendulum-v1", "200", "1", "0", "1"]
    assert listed("data", "run:latest")[1].split()[1:6] == row.split()[1:6]
    drl_here("record", "episodes=1", "seed=1")
    several = drl_here("list", "data", "run:latest")
    assert (several.returncode, several.stderr.count(f"{best}-1episodes-seed1, the newest of 2")) == (0, 1)


def test_an_aborted_recording_leaves_nothing(drl_here, tmp_path, user_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(user_folder))
    monkeypatch.setattr("user_envs.Tiny.step", lambda self, action: 1 / 0, raising=True)
    done = drl_here("record", "env=user_envs:Tiny-v0", "episodes=3", "output=there/a.npz")
    assert (done.returncode, done.stdout) == (4, "")
    assert "ZeroDivisionError" in done.stderr
    assert not [*tmp_path.glob("there/*")]


def test_without_minari_the_extra_and_a_file_are_named(drl_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "minari.dataset._storages", None)
    done = drl_here("record", "env=Pendulum-v1", "episodes=1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith("needs Minari:  pip install 'drl-cli[minari]'   or write a file: output=NAME.npz\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        *[(["run=latest"], 2, "no run 'latest'"), (["env=Pendulum-v1", "episodes=0"], 2, "episodes: ")],
        *[(["env=Pendulum-v1", "policy=randm"], 2, "policy: "), (["env=Pendulm-v1"], 2, "Did you mean Pendulum")],
        (["env=Pendulum-v1", "run=latest"], 2, "no run 'latest'"),
        (["env=Pendulum-v1", "policy=run"], 2, "policy=run needs a run"),
        (["env=Pendulum-v1", "steps=5", "episodes=5"], 2, "episodes and steps: say one of them"),
        (["env=Pendulum-v1", "stochastic=true"], 2, "stochastic=true is for the policy of a run"),
        (["env=Pendulum-v1", "checkpoint=best"], 2, "checkpoint is for the policy of a run"),
        (["replay=true", "episodes=5", "seed=2"], 2, "leave episodes and seed out"),
        (["env=Pendulum-v1", "output=a.hdf5"], 2, ".hdf5 is not written; say a folder, minari:ID or a file .npz"),
        (["env=Pendulum-v1", "output=minari:a"], 2, "Minari's ids end with a version: minari:a-v0"),
        (["env=Pendulum-v1", "output=minari:../../a-v0"], 2, "Minari's ids"),
        (["env=Pendulum-v1", "output=/proc/a/x.npz"], 7, "/proc/a"),
        (["env=Pendulum-v1", "reference=[5,2]", "output=a.npz"], 2, "reference=[5.0, 2.0]: say [random,expert]"),
        (["env=Pendulum-v1", "episode=3"], 2, "Did you mean episodes?"),
    ],
)
def test_wrong_commands(drl_here, tmp_path, monkeypatch, words, code, text):
    monkeypatch.chdir(tmp_path)
    done = drl_here("record", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert not re.search("Traceback", done.stderr)
    assert not [*tmp_path.rglob("*.npz")]
