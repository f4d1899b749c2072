"""Old names of keys, options and Python names work for one minor version, and each prints one warning."""

from dataclasses import dataclass

import pytest
import yaml

import drl_cli
import drl_cli.api as drl
from drl_cli import renamed
from drl_cli.cli.command import option
from drl_cli.cli.train import answer
from drl_cli.runs.find import read_config
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import mapping
from drl_cli.settings.options import parse
from drl_cli.settings.trust import consent, read_run, typed_asks

WARNING = "warning: algo.rate is now algo.lr; the next minor version will refuse algo.rate\n"


@pytest.fixture(autouse=True)
def old_names(monkeypatch):
    """`algo.rate`, `algo=softer`, `steps` and `judge` are old names."""
    new = {"algo.rate": "algo.lr", "algo=softer": "algo=sac", "steps": "total_env_steps", "judge": "manage.evaluator"}
    monkeypatch.setattr(renamed, "KEYS", new)
    monkeypatch.setattr(renamed, "NAMES", {"drl_cli.api.Change": "Update", "drl_cli.open": "load"})
    renamed.warn.cache_clear()


def test_a_command_line_with_old_names_means_the_new_ones(capsys):
    command = read_command(["-m", "env=Pendulum-v1", "algo=ppo,softer", "++algo.rate=1e-3,3e-4", "steps=50"])
    assert command.overrides == ["env=Pendulum-v1", "algo=ppo,sac", "++algo.lr=1e-3,3e-4", "total_env_steps=50"]
    check_command(command)
    assert capsys.readouterr().err.count(WARNING) == 1


def test_a_typed_module_is_known_by_both_names():
    assert typed_asks(["judge=evil:Judge"]) == typed_asks(["manage.evaluator=evil:Judge"]) != []


def test_the_values_of_other_keys_stay_the_same():
    words = ["network.hidden=[64,64]", 'notes="algo.rate=1, steps"', "name=steps", "+x", "algo.lr=1"]
    assert renamed.new_words(words) == words


def test_the_checks_of_a_run_and_its_record_have_the_new_names(monkeypatch):
    """`train` gets the words of the command line, in which it looks for keys that the user set."""
    seen = []

    def train(plain, words, *rest):
        seen.append(words)
        return {"exit_code": 0}

    monkeypatch.setattr("drl_cli.cli.train.train", train)
    monkeypatch.setattr("drl_cli.cli.from_python.train_composed", train)
    answer(["env=Pendulum-v1", "steps=50"])
    drl_cli.train("env=Pendulum-v1 steps=50")
    assert seen == [["env=Pendulum-v1", "total_env_steps=50"]] * 2


def test_explain_shows_the_new_name(capsys):
    answer(["env=Pendulum-v1", "algo=softer", "algo.rate=0.5", "explain=true"])
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if line.startswith("algo.lr ")]
    assert line.split()[1:3] == ["0.5", "command"]
    assert printed.err.count(WARNING) == 1


def test_a_users_yaml_may_have_the_old_name(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nalgo:\n  rate: 0.5\nsteps: 50\n")
    words = ["--config-dir", str(tmp_path), "env=Pendulum-v1", "algo=sac", "experiment=mine"]
    command = read_command(words)
    check_command(command)
    plain = mapping(command.overrides)
    assert (plain["algo"]["lr"], plain["total_env_steps"]) == (0.5, 50)
    assert not {"rate", "steps"} & {*plain, *plain["algo"]}
    assert mapping([*command.overrides, "algo.lr=0.25"])["algo"]["lr"] == 0.25
    assert capsys.readouterr().err.count(WARNING) == 1


def test_a_run_of_the_version_before_has_the_old_name(copied, capsys):
    file = copied / "config.yaml"
    node = yaml.safe_load(file.read_text())
    node["algo"]["rate"], node["steps"] = 0.5, node.pop("total_env_steps")
    del node["algo"]["lr"]
    file.write_text(yaml.safe_dump(node))
    config = read_config(copied)
    assert (config.algo.lr, config.total_env_steps) == (0.5, 160)
    assert mapping(["algo.lr=0.25"], file)["algo"]["lr"] == 0.25
    assert WARNING in capsys.readouterr().err
    file.write_text(yaml.safe_dump({**node, "judge": "evil:Judge"}))
    with pytest.raises(drl_cli.UsageError, match=r"manage\.evaluator=evil:Judge"):  # asks for consent, too
        consent(file, read_run(file))


def test_a_config_keeps_what_is_not_renamed_and_is_copied():
    config = {"algo": {"rate": 1, "tau": 2}, "steps": 3, "env": None}
    new = {"algo": {"lr": 1, "tau": 2}, "total_env_steps": 3, "env": None}
    assert (renamed.with_new_names(config), config["algo"]) == (new, {"rate": 1, "tau": 2})
    assert renamed.with_new_names({"env": None, "algo": "sac"}) == {"env": None, "algo": "sac"}


def test_the_option_of_a_command_has_its_old_name(capsys):
    @dataclass(frozen=True)
    class Options:
        episodes: int = option(20, "how many", was="count")

    assert parse(["count=5"], Options) == Options(5)
    assert capsys.readouterr().err == "warning: count is now episodes; the next minor version will refuse count\n"
    assert parse(["episodes=5"], Options) == Options(5)


@pytest.mark.parametrize(("module", "old", "new"), [(drl, "Change", drl.Update), (drl_cli, "open", drl_cli.load)])
def test_an_old_python_name_is_the_new_one(module, old, new):
    with pytest.warns(FutureWarning, match=rf"{old} is now .*; the next minor version will not have {old}") as caught:
        assert getattr(module, old) is new
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'Nothing'"):
        _ = module.Nothing
