from types import SimpleNamespace

import pytest

import drl_cli.runs.data_env as module
from drl_cli.envs.config import NO_ENV
from drl_cli.errors import UsageError
from drl_cli.runs.auto import with_auto
from drl_cli.settings.command_line import read_command


def read(monkeypatch, line, env="Pendulum-v1"):
    """Return the overrides after `with_data_env`, and the sources that were opened; every dataset names `env`."""
    opened, named = [], isinstance(env, dict)
    monkeypatch.setattr(module, "dataset_path", lambda source, folder: source.replace("run:", f"{folder}/of-"))
    monkeypatch.setattr(
        "drl_cli.data.open.open_recording",
        lambda source, download: (
            opened.append(source) or SimpleNamespace(env=env.get(source) if named else env, provenance={})
        ),
    )
    command, _ = module.with_data_env(read_command(line.split()))
    return command.overrides, opened


def test_a_run_stands_for_its_dataset(monkeypatch):
    overrides, opened = read(monkeypatch, "mode=offline data=run:latest algo=iql output_dir=here")
    assert opened == ["here/of-latest"]
    assert {"data.source=here/of-latest", "env=Pendulum-v1"} <= {*overrides}
    overrides, opened = read(monkeypatch, "mode=offline data=run:latest env=Pendulum-v1")
    assert "data.source=outputs/of-latest" in overrides
    assert opened == []


def test_several_datasets_may_be_of_runs_and_have_the_environment_that_all_name(monkeypatch):
    overrides, opened = read(monkeypatch, "mode=offline data=[run:latest,a.npz] output_dir=here")
    assert opened == ["here/of-latest", "a.npz"]
    assert "data.source=[here/of-latest,a.npz]" in overrides
    assert "env=Pendulum-v1" in overrides
    overrides, _ = read(
        monkeypatch, "mode=offline data=[a.npz,b.npz]", {"a.npz": "Pendulum-v1", "b.npz": "CartPole-v1"}
    )
    assert f"env={NO_ENV}" in overrides


def test_an_environment_that_is_not_here_is_no_environment(monkeypatch):
    overrides, _ = read(monkeypatch, "mode=offline data=a.npz", env="Nowhere-v3")
    assert {f"env={NO_ENV}", "env.name=Nowhere-v3"} <= {*overrides}


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
