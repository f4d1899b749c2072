import re
from pathlib import Path

import pytest

from drl_cli.algos.off_policy.sac import Config as SacConfig
from drl_cli.settings.build import build, keys_of
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import composed
from drl_cli.settings.conf import own_dirs
from drl_cli.settings.explain import explanation, tuned_line

IMAGES = "env=drl_cli.envs.probes:Patch-v0"


def job(ask, *overrides):
    """What `ask` says within the Hydra job of this command line."""
    try:
        with composed(read_command(overrides).overrides) as plain:
            return ask(plain)
    finally:
        own_dirs.clear()


@pytest.fixture
def explained():
    """The rows of explain=true by key: (value, layer, source)."""

    def rows(*overrides):
        lines = job(lambda plain: explanation(build(plain), overrides), *overrides)
        cells = [[*re.split(r" {2,}", line), ""][:4] for line in lines]
        assert len({key for key, *_ in cells}) == len(cells)
        return {key: tuple(rest) for key, *rest in cells}

    return rows


@pytest.fixture
def own_yaml(tmp_path):
    """Where a user has an experiment and tuned values."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "tuned").mkdir()
    experiment = (
        "# @package _global_\ndefaults:\n  - override /replay: prioritized\nalgo:\n  lr: 0.02\nworker:\n  envs: 3\n"
    )
    (tmp_path / "experiment" / "mine.yaml").write_text(experiment)
    (tmp_path / "tuned" / "sac-Acrobot-v1.yaml").write_text("# @package _global_\nalgo:\n  tau: 0.5\n")
    return tmp_path


@pytest.mark.slow
def test_every_key_is_there_once_with_the_layer_that_set_it(explained):
    rows, keys = explained(), keys_of(SacConfig)
    wanted = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    others = {f"replay.{name}" for name in ("alpha", "beta", "eps", "uniform_mix", "initial_priority", "max_staleness")}
    others |= {"replay.eta", "replay.times", "replay.age_factor"}
    assert {key for key in rows if not key.endswith("=")} == wanted - others
    assert {layer for _, layer, _ in rows.values()} == {"default", "mode", "algo", "tuned"}
    assert all(source for _, _, source in rows.values())


@pytest.mark.slow
def test_the_layer_of_a_value(explained):
    typed = ["env=Pendulum-v1", "mode=sync", "replay=prioritized", "algo.lr=1e-2", "worker.envs=3", "+env.kwargs.g=5"]
    rows = explained(*typed, "logger.tensorboard=false", "+optimizer.kwargs.betas=[0.5,0.9]")
    wanted = {
        "seed": ("0", "default", "conf/train.yaml"),
        "stop.return": ("null", "default", "conf/train.yaml"),
        "mode": ("sync", "mode", "conf/mode/sync.yaml"),
        "replay.alpha": ("0.6", "default", "conf/replay/prioritized.yaml"),
        "replay.capacity": ("100000", "tuned", "conf/tuned/sac.yaml, Pendulum-v1"),
        "algo.gamma": ("0.99", "algo", "conf/algo/sac.yaml"),
        "algo.alpha_lr": ("0.001", "tuned", "conf/tuned/sac.yaml, Pendulum-v1"),
        "algo.lr": ("0.01", "command line", "was 1e-3 (tuned, conf/tuned/sac.yaml, Pendulum-v1)"),
        "worker.envs": ("3", "command line", "was 8 (tuned, conf/tuned/sac.yaml, Pendulum-v1)"),
        "network.hidden": ("[128,128]", "tuned", "conf/tuned/sac.yaml, Pendulum-v1"),
        "env.id": ("Pendulum-v1", "default", "env=Pendulum-v1"),
        "env.reward_scale": ("0.1", "tuned", "conf/tuned/sac.yaml, Pendulum-v1"),
        "env.kwargs": ("{g:5}", "command line", ""),
        "optimizer.kwargs": ("{betas:[0.5,0.9]}", "command line", "was {} (default, conf/optimizer/adam.yaml)"),
        "logger.tensorboard": ("false", "command line", "was true (default, conf/logger/default.yaml)"),
        "replay=": ("prioritized", "command line", ""),
        "env=": ("Pendulum-v1", "command line", ""),
        "algo=": ("sac", "default", "conf/train.yaml"),
        "tuned=": ("sac-Pendulum-v1", "default", "conf/train.yaml"),
    }
    assert {key: rows[key] for key in wanted} == wanted


@pytest.mark.slow
def test_what_an_algorithm_prefers_of_other_groups_is_its_layer(explained):
    rows = explained("env=CartPole-v1", "algo=ppo", "tuned=none")
    assert rows["replay="] == ("fifo-once", "algo", "conf/algo/ppo.yaml")
    assert rows["network.activation"] == ("tanh", "algo", "conf/algo/ppo.yaml")
    assert rows["trainer.batch_size"] == ("2048", "algo", "conf/algo/ppo.yaml")
    assert rows["tuned="] == ("none", "command line", "")


@pytest.mark.slow
def test_an_algorithm_that_auto_chose_is_not_shown_as_typed():
    job_words, typed = ["env=CartPole-v1", "algo=ppo"], ["env=CartPole-v1", "algo=auto"]
    lines = job(lambda plain: explanation(build(plain), typed), *job_words)
    assert re.split(r" {2,}", lines[0]) == ["algo=", "ppo", "auto", "algo=auto, command line"]
    assert re.split(r" {2,}", lines[1])[2] == "command line"


@pytest.mark.slow
def test_null_and_auto_say_what_they_are_here(explained):
    rows = explained("env=Pendulum-v1", "mode=single", "orchestrator.min_inserts=7")
    assert rows["worker.num"][2] == "conf/worker/default.yaml; here 1"
    assert rows["worker.random_steps"][2].endswith("; here 7")
    assert rows["trainer.updates_per_call"][2].endswith("; here 16")
    assert rows["worker.block_rows"] == ("null", "default", "conf/worker/default.yaml; here 64")
    assert explained("worker.block_rows=64")["worker.block_rows"][1:] == (
        "command line",
        "was null (default, conf/worker/default.yaml)",
    )
    assert "here" not in explained("ray.address=auto")["worker.num"][2]
    weights = explained("load_weights=not/there")  # missing weights are an error only when the run starts
    assert weights["worker.random_steps"][2].endswith("; here 0")


@pytest.mark.slow
def test_a_shortened_warm_up_says_so(explained):
    rows = explained("env=HalfCheetah-v5", "algo=sac", "mode=single", "total_env_steps=3000")
    source = "conf/tuned/td3.yaml, mujoco: 5000, shortened to a tenth of total_env_steps=3000"
    assert rows["orchestrator.min_inserts"] == ("300", "tuned", source)
    assert rows["worker.random_steps"] == ("null", "default", "conf/worker/default.yaml; here 300")
    typed = explained("env=HalfCheetah-v5", "algo=sac", "total_env_steps=3000", "orchestrator.min_inserts=4000")
    assert typed["orchestrator.min_inserts"][0] == "4000"


@pytest.mark.slow
def test_a_yaml_of_the_users_is_a_layer_between_tuned_and_typed(explained, own_yaml, monkeypatch):
    monkeypatch.chdir(own_yaml)
    typed = (f"hydra.searchpath=[{own_yaml}]", "env=Pendulum-v1", "+experiment=mine", "worker.envs=4")
    rows = explained(*typed)
    assert rows["algo.lr"] == ("0.02", "your yaml", "experiment/mine.yaml")
    assert rows["replay="] == ("prioritized", "your yaml", "experiment/mine.yaml")
    assert rows["worker.envs"] == ("4", "command line", "was 3 (your yaml, experiment/mine.yaml)")
    assert job(tuned_line, *typed) == "tuned sac-Pendulum-v1: 10 values"
    own = (typed[0], "env=Acrobot-v1", "algo=sac")
    assert explained(*own)["algo.tau"] == ("0.5", "your yaml", "tuned/sac-Acrobot-v1.yaml")
    assert job(tuned_line, *own) == "tuned sac-Acrobot-v1: 1 value"


@pytest.mark.slow
def test_a_tuned_set_of_the_users_replaces_ours_and_may_build_on_ours(explained, own_yaml, monkeypatch):
    monkeypatch.chdir(own_yaml)
    based = "# @package _global_\ndefaults: [td3-Pendulum-v1, _self_]\nalgo: {tau: 0.5}\n"
    Path("tuned/sac-Pendulum-v1.yaml").write_text(based)
    Path("tuned/redq-mujoco.yaml").write_text("# @package _global_\nalgo: {tau: 0.5}\n")
    typed = (f"hydra.searchpath=[{own_yaml}]", "env=Pendulum-v1")
    assert job(tuned_line, *typed) == "tuned sac-Pendulum-v1: 11 values"
    rows = explained(*typed)
    assert rows["algo.tau"] == ("0.5", "your yaml", "tuned/sac-Pendulum-v1.yaml")
    assert rows["replay.capacity"] == ("100000", "tuned", "conf/tuned/td3.yaml, Pendulum-v1")
    assert rows["algo.alpha_lr"][1:] == ("algo", "conf/algo/sac.yaml")
    assert explained(typed[0], "env=Hopper-v5", "algo=redq")["tuned="][0] == "redq-mujoco"


@pytest.mark.slow
def test_the_tuned_values_that_hold_are_counted():
    assert job(tuned_line, "env=Pendulum-v1") == "tuned sac-Pendulum-v1: 12 values"
    assert job(tuned_line, "env=Pendulum-v1", "worker.envs=3") == "tuned sac-Pendulum-v1: 11 values"
    of_breakout = job(tuned_line, "env=MinAtar-Breakout", "algo=dqn")
    assert job(tuned_line, "env=MinAtar-Asterix", "algo=dqn") == of_breakout.replace("Breakout", "Asterix")
    for words in (("env=Pendulum-v1", "tuned=none"), ("env=MountainCarContinuous-v0",)):
        assert job(tuned_line, *words).startswith("no tuned values: ")


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_layer_of_the_run(drl_here, small_run, monkeypatch):
    monkeypatch.chdir(small_run.cwd)
    folder = small_run.folder.relative_to(small_run.cwd)
    done = drl_here("train", "resume=latest", "total_env_steps=400", "explain=true")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"^algo\.lr +0\.001 +run +{folder}/config\.yaml$", done.stdout, re.MULTILINE)
    assert re.search(rf"^total_env_steps +400 +command line +was 160 \(run, {folder}/", done.stdout, re.MULTILINE)


def test_the_header_of_a_run_names_tuned_values_and_the_torso(small_run):
    lines = small_run.done.stdout.splitlines()
    assert lines[1] == "algo=sac by default for continuous (Box) actions"
    assert re.fullmatch(r"tuned sac-Pendulum-v1: \d values", lines[2])
    assert lines[3] == "network: auto is mlp: 3 inputs, mlp [16, 16]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "group", "row"),
    [
        (["env=CartPole-v1"], "algo=", ("dqn", "action space", "env=CartPole-v1")),
        (["env=CartPole-v1", "algo=dqn"], "algo=", ("dqn", "command line", "")),
        ([IMAGES, "algo=ppo"], "tuned=", ("ppo-images", "images", IMAGES)),
        (["env=Hopper-v5", "algo=sac"], "tuned=", ("sac-mujoco", "mujoco", "env=Hopper-v5")),
        ([IMAGES, "algo=ppo", "tuned=ppo-images"], "tuned=", ("ppo-images", "command line", "")),
    ],
)
def test_the_environment_is_the_source_of_an_option_that_it_chooses(explained, overrides, group, row):
    assert explained(*overrides)[group] == row
