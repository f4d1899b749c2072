"""The yaml files: all compose, all are commented, and none has a key that nothing reads."""

import ast
import re
from pathlib import Path

import pytest
import yaml
from choices import some
from composing import by_hydra
from confs import algo_node

import drl_cli
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.settings.algorithm import algorithm_of, config_class
from drl_cli.settings.build import build, keys_of
from drl_cli.settings.check import check_command, check_file
from drl_cli.settings.command_line import read_command
from drl_cli.settings.conf import conf_dir, groups, option_text, options, sections, tuned_section
from drl_cli.settings.first_try import WITH_TUNED

FILES = sorted(path.relative_to(conf_dir()).as_posix() for path in conf_dir().rglob("*.yaml"))
SECTIONS = [(path.stem, name) for path in (conf_dir() / "tuned").glob("*.yaml") for name in sections(path.stem)]
TUNED = [name for name in options("tuned") if name != "none" and not name.endswith(("-images", "-mujoco"))]
FEW = ("dqn-MinAtar-Breakout", "ppo-CartPole-v1", "rainbow-CartPole-v1", "sac-LunarLanderContinuous")
SOME_SETS = some(sorted({*TUNED[::4], *FEW}), *FEW)
OVERLAYS = ("tuned/", "experiment/", "hpo/")  # they set keys that are explained where they are declared
PACKAGE = Path(drl_cli.__file__).parent
COMPOSED = [group for group in groups() if group not in ("tuned", "replay")]  # some algorithms need one replay


def read(file):
    return yaml.safe_load((conf_dir() / file).read_text()) or {}


def leaves(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict) and value and prefix + key != "env.kwargs":
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def tuned_values(name):
    """Return the values of a tuned set and of the sets that it builds on."""
    node = yaml.safe_load(option_text("tuned", name))
    bases = [base for base in node.pop("defaults", ()) if base != "_self_"]
    return {key: value for base in bases for key, value in tuned_values(base).items()} | dict(leaves(node))


def number(value):
    """Return a value as a number if it is one: yaml leaves 1e-3 as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


@pytest.fixture
def composed():
    """Hydra itself, because these tests are about the files that it reads."""
    return by_hydra


@pytest.mark.slow
@pytest.mark.parametrize("place", range(max(len(options(group)) for group in COMPOSED)))
def test_every_yaml_composes_and_converts(composed, place):
    chosen = {group: options(group)[place % len(options(group))] for group in COMPOSED}
    config = build(composed(*(f"{group}={name}" for group, name in chosen.items()), "tuned=none"))
    assert (config.env.name, config.mode) == (chosen["env"], chosen["mode"])
    assert config.algo.name == algo_node(chosen["algo"])["name"]


@pytest.mark.parametrize("file", [file for file in FILES if "/" in file and not file.startswith("tuned/")])
def test_every_key_of_a_yaml_exists_and_may_have_its_value(file):
    group, _, name = file.removesuffix(".yaml").partition("/")
    problems = check_file(conf_dir() / file, group, config_class(algorithm_of(name if group == "algo" else "sac")))
    others = [line for line in problems if group != "replay" or "only replay=" not in line]
    assert others == []


@pytest.mark.parametrize("file", FILES)
def test_every_option_has_a_comment_on_its_line(file):
    text = (conf_dir() / file).read_text()
    assert text.startswith("#")
    if file.startswith(OVERLAYS):
        return
    after_defaults = text.split("\n\n", 1)[1] if file == "train.yaml" else text
    options = [line for line in after_defaults.splitlines() if re.match(r"\s*\w+:\s*\S", line)]
    assert options
    assert [line for line in options if not re.search(r"\S\s+# \S", line)] == []


@pytest.mark.parametrize(("algo", "name"), SECTIONS)
def test_a_section_of_tuned_values_is_the_text_of_a_yaml_with_a_reason_and_keys_that_exist(algo, name, tmp_path):
    text, file = sections(algo)[name], tmp_path / "section.yaml"
    assert yaml.safe_load(text) == read(f"tuned/{algo}.yaml")[name]
    assert re.match(r"# @package _global_\n# \S", text)
    file.write_text(text)
    assert check_file(file, "tuned", config_class(algorithm_of(algo))) == []


def test_every_section_of_tuned_values_is_found():
    files = {path.stem for path in (conf_dir() / "tuned").glob("*.yaml")}
    assert {(algo, name) for algo in files - {"none"} for name in read(f"tuned/{algo}.yaml")} == {*SECTIONS}
    assert "dqn-MinAtar-SpaceInvaders" in options("tuned")
    found = {tuned_section(option)[0] for option in options("tuned") if option != "none"}
    assert found == {f"conf/tuned/{algo}.yaml, {name}" for algo, name in SECTIONS}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_SETS)
def test_tuned_values_come_by_themselves_and_are_off_with_none(composed, name):
    algo, _, env = name.partition("-")
    wanted = tuned_values(name)
    tuned, plain = composed(f"env={env}", f"algo={algo}"), composed(f"env={env}", f"algo={algo}", "tuned=none")
    have, without = dict(leaves(tuned)), dict(leaves(plain))
    assert {key: number(have[key]) for key in wanted} == {key: number(value) for key, value in wanted.items()}
    differing = {key for key, value in have.items() if without[key] != value}
    assert differing
    assert differing <= {*wanted, *WITH_TUNED}  # without tuned values, those of first_try.py
    build(tuned)


@pytest.mark.parametrize("algo", ["c51", "rainbow"])
@pytest.mark.parametrize(("env", "worst", "best"), [("CartPole-v1", 0, 1), ("Acrobot-v1", -1, 0)])
def test_a_tuned_support_has_every_return_of_rewards_of_1(composed, algo, env, worst, best):
    values = composed(f"env={env}", f"algo={algo}")["algo"]
    steps = 1 / (1 - values["gamma"])
    assert (values["v_min"], values["v_max"]) == pytest.approx((worst * steps, best * steps))


@pytest.mark.parametrize(("algo", "tuned"), [("rainbow", "c51-CartPole-v1"), ("c51", "rainbow-CartPole-v1")])
def test_a_tuned_set_of_a_preset_fits_its_algorithm_and_the_other_way_round(algo, tuned):
    check_command(read_command([f"algo={algo}", "env=CartPole-v1", f"tuned={tuned}"]))


@pytest.mark.parametrize("id", ["MountainCarContinuous-v0", "my_pkg.my_mod:MyEnv-v0", "my_mod:space/MyEnv-v0"])
def test_env_takes_any_id(composed, id):
    node = composed(f"env={id}", "env.max_episode_steps=5", "+env.kwargs.a=1")
    plain = read("env/LunarLander.yaml")
    scaled = {"normalize_obs": False, "normalize_reward": True}  # with an argument that the environment does not have
    assert node["env"] == plain | scaled | {"name": id, "id": id, "kwargs": {"a": 1}, "max_episode_steps": 5}


def names_read():
    """Return the attributes that the code reads, and the keys of learning rates, which algorithms name in `rates`."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    rates = [node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "rates"]
    named = {key.value for rate in rates for key in ast.walk(rate) if isinstance(key, ast.Constant)}
    return named | {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.slow
def test_every_option_is_read_by_the_code():
    """Acme had two options that never reached its learner. test_unread_search.py looks for keys without effect."""
    found = names_read()
    keys = set().union(*(keys_of(load_algorithm(name).Config) for name in algorithms()))
    assert [key for key in keys if not {key.rpartition(".")[2], f"{key.rpartition('.')[2]}_"} & found] == []
