from dataclasses import replace

import pytest
from recorded_envs import episodes, header
from run_folders import make_run

from drl_cli.data.write import write
from drl_cli.envs.config import NO_ENV
from drl_cli.errors import UsageError
from drl_cli.runs.auto import with_auto
from drl_cli.runs.data_env import with_data_env
from drl_cli.settings.command_line import read_command


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Record datasets that name environments, and return a function that gives the overrides of a command."""
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "here", "r1")
    for path, env in (
        *((run / "data" / "of-run.npz", "Pendulum-v1"), (tmp_path / "a.npz", "Pendulum-v1")),
        *((tmp_path / "b.npz", "CartPole-v1"), (tmp_path / "c.npz", "Nowhere-v3")),
    ):
        write(path, replace(header("box"), env=env), lambda _: episodes("box", 1))
    return lambda line: [*with_data_env(read_command([*line.split(), "output_dir=here"]))[0].overrides]


def test_a_run_stands_for_its_dataset(read):
    overrides = read("mode=offline data=run:latest algo=iql")
    assert overrides[1].endswith("r1/data/of-run.npz")
    assert "env=Pendulum-v1" in overrides
    assert "env=Pendulum-v1" not in read("mode=offline data=run:latest env=CartPole-v1")


def test_several_datasets_may_be_of_runs_and_have_the_environment_that_all_name(read):
    overrides = read("mode=offline data=[run:latest,a.npz]")
    assert overrides[1].startswith("data.source=[")
    assert overrides[1].endswith("r1/data/of-run.npz,a.npz]")
    assert "env=Pendulum-v1" in overrides
    assert f"env={NO_ENV}" in read("mode=offline data=[a.npz,b.npz]")


def test_an_environment_that_is_not_here_is_no_environment(read):
    assert {f"env={NO_ENV}", "env.name=Nowhere-v3"} <= {*read("mode=offline data=c.npz trust=true")}


@pytest.mark.parametrize(("env", "name"), [("Pendulum-v1", "iql"), ("CartPole-v1", "cql_discrete")])
def test_auto_takes_an_algorithm_for_data(env, name):
    command, line = with_auto(read_command(["mode=offline", "data=a.npz", f"env={env}", "algo=auto"]))
    assert f"algo={name}" in command.overrides
    assert line.startswith(f"algo=auto chose {name}: ")


def test_auto_has_nothing_for_data_with_several_choices():
    words = [
        *["mode=offline", "data=a.npz", "env=drl_cli.envs.probes:Tree-v0", "env.kwargs={discrete: true}"],
        "algo=auto",
    ]
    with pytest.raises(UsageError, match="multi-discrete actions; say algo=NAME"):
        with_auto(read_command(words))
