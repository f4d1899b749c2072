"""A run's config is what Hydra composes, which knows it as its job's just as long; so is the tests' quick way."""

import os
import re

import pytest
from choices import some
from composing import by_hydra, compose_plain
from hydra.core.hydra_config import HydraConfig

from drl_cli.errors import UsageError
from drl_cli.settings.build import build
from drl_cli.settings.compose import compose, composed, mapping, write_config
from drl_cli.settings.conf import groups, options
from drl_cli.settings.explain import tuned_line


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("env=Pendulum-v1",),
        ("env=CartPole-v1", "algo=dqn", "algo.lr=1e-2", "mode=single", "network.hidden=[16,16]"),
        ("algo=ppo", "tuned=none", "replay.max_staleness=3", "stop.return=1.5"),
        ("env=drl_cli.envs.probes:Counter-v0", "++env.kwargs.g=5", "algo.n_step=3", "replay=prioritized"),
        ("env=CartPole-v1", "algo=iqn", "network=gru", "optimizer=adamw"),
        ("env=Acrobot-v1", "algo=qr_dqn", "replay=hindsight", "tuned=rainbow-CartPole-v1"),
    ],
)
def test_what_tests_compose_is_what_the_command_composes(overrides):
    assert compose_plain(*overrides) == mapping(overrides)


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", [group for group in groups() if len(options(group)) > 1])
def test_every_option_is_composed_as_hydra_does(group):
    for option in options(group)[::4]:
        name, dash, _ = option.partition("-")
        words = (f"{group}={option}", *([f"algo={name}"] if group == "tuned" and dash else []))
        assert compose_plain(*words) == by_hydra(*words), option


IMAGE_SETS = [name for name in options("tuned") if name.endswith("-images")]
PROBES = "drl_cli.envs.probes"


@pytest.mark.slow
@pytest.mark.parametrize("name", some(IMAGE_SETS, "dqn-images", "ppo-images", "sac-images"))
def test_images_have_tuned_values_for_every_algorithm(name):
    algo = name.removesuffix("-images")
    env = f"env={PROBES}:Patch{'Reach' if algo == 'sac' else ''}-v0"
    with composed([env, f"algo={algo}"]) as plain:
        assert HydraConfig.get().runtime.choices["tuned"] == name
        assert re.fullmatch(rf"tuned {name}: \d values?", tuned_line(plain))
        config = build(plain)
    assert config.algo_name == algo
    assert config.trainer.batch_size == (1024 if algo == "ppo" else 32)
    assert mapping([env, f"algo={algo}", "trainer.batch_size=64"])["trainer"]["batch_size"] == 64
    assert build(mapping([env, f"algo={algo}", "tuned=none"])).trainer.batch_size > 32


@pytest.mark.parametrize(
    "overrides",
    [
        (f"env={PROBES}:Counter-v0",),  # no image
        (f"env={PROBES}:Patch-v0", "env.kwargs={size:24}"),  # a small image
        ("env=MinAtar-Breakout",),  # values of the environment's name
        (f"env={PROBES}:Nothing-v0",),  # no environment; preflight reports this
    ],
)
def test_only_images_have_the_tuned_values_for_images(overrides):
    with composed([*overrides, "algo=dqn"]):
        assert HydraConfig.get().runtime.choices["tuned"] != "dqn-images"


MUJOCO_SETS = [name for name in options("tuned") if name.endswith("-mujoco")]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(MUJOCO_SETS, "sac-mujoco", "droq-mujoco"))
def test_mujoco_tasks_share_the_tuned_values_of_an_algorithm(name):
    algo = name.removesuffix("-mujoco")
    config = build(mapping(["env=HalfCheetah-v5", f"algo={algo}"]))
    assert build(mapping(["env=dm_control/walker-walk-v0", f"algo={algo}"])).orchestrator == config.orchestrator
    assert config.orchestrator.min_inserts == 5000
    assert config.orchestrator.sample_insert_ratio == (2 if algo == "droq" else 1)
    assert build(mapping(["env=HalfCheetah-v5", f"algo={algo}", "tuned=none"])).orchestrator.min_inserts == 1000
    assert build(mapping(["env=Pendulum-v1", f"algo={algo}"])).orchestrator.min_inserts == 1000


def test_a_named_set_precedes_that_of_the_family():
    with composed(["env=Hopper-v5", "algo=sac", "tuned=sac-Pendulum-v1"]):
        assert HydraConfig.get().runtime.choices["tuned"] == "sac-Pendulum-v1"


@pytest.mark.slow
def test_the_config_of_a_run_keeps_its_values(tmp_path):
    config = compose([f"env={PROBES}:Patch-v0", "algo=dqn", "tuned=none"])
    write_config(tmp_path, config)
    assert compose([], tmp_path / "config.yaml").trainer.batch_size == config.trainer.batch_size == 256
    assert compose(["mode=sync"], tmp_path / "config.yaml").mode == "sync"  # a copy of a run's config is one, too
    older = (tmp_path / "config.yaml").read_text().replace("precision: float32\n", "")
    (tmp_path / "config.yaml").write_text(older)
    assert compose([], tmp_path / "config.yaml").precision == "float32"  # a key that is newer than the run


@pytest.mark.slow
def test_hydra_knows_the_config_as_long_as_the_run_takes():
    with composed(["env=Pendulum-v1", "seed=4"]) as plain:
        assert (plain["seed"], "hydra" in plain) == (4, False)
        assert HydraConfig.get().runtime.choices["env"] == "Pendulum-v1"
    assert not HydraConfig.initialized()
    with pytest.raises(UsageError, match="no key x"), composed(["env=Pendulum-v1", "algo.lr=${x}"]):
        pass
    assert not HydraConfig.initialized()


@pytest.mark.slow
def test_variables_for_the_job_are_there_for_values_and_for_the_run(monkeypatch):
    monkeypatch.setenv("MY_SEED", "1")
    with composed(["env=Pendulum-v1", "+hydra.job.env_set.MY_SEED='7'", "seed=${oc.env:MY_SEED}"]) as plain:
        assert (plain["seed"], os.environ["MY_SEED"]) == ("7", "7")


@pytest.mark.slow
def test_the_config_is_printed_instead_of_a_run(drl, tmp_path):
    done = drl("train", "env=Pendulum-v1", "algo.lr=0.5", "--cfg", "job", "-p", "algo", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# @package algo\nname: sac\n")
    assert "\nlr: 0.5\n" in done.stdout
    assert list(tmp_path.iterdir()) == []
