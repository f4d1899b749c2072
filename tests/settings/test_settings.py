import copy
import dataclasses

import pytest
import yaml

from drl_cli.algos.off_policy.sac import Config as SacConfig
from drl_cli.config.config import Config
from drl_cli.errors import UsageError
from drl_cli.replay.config import SAMPLERS, PrioritizedConfig, UniformConfig
from drl_cli.settings.build import as_typed, build, is_within, keys_of, to_yaml_keys
from drl_cli.settings.value_types import group_of, shown

GROUPS = sorted({key.group for key in keys_of(SacConfig).values()} - {""})


@pytest.fixture
def plain(composed):
    return composed()


def parent_of(node, group):
    for name in group.split("."):
        node = node[name]
    return node


def problems_of(node):
    with pytest.raises(UsageError) as caught:
        build(node)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_the_defaults_become_one_frozen_config(plain):
    config = build(plain)
    assert isinstance(config, Config)
    assert isinstance(config.algo, SacConfig)
    assert config.network.hidden == tuple(plain["network"]["hidden"])
    assert config.stop.return_ is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.algo.lr = 1.0


@pytest.mark.slow
def test_there_and_back_is_the_same_config(composed):
    plain = composed("env=Pendulum-v1", "stop.return=-200", "worker.num=3", "+env.kwargs.g=9.5")
    config = build(plain)
    assert (build(to_yaml_keys(config)), to_yaml_keys(config)["stop"]["return"]) == (config, -200)


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_an_unknown_key_of_a_yaml_is_an_error_in_every_group(plain, group):
    node = parent_of(plain, group) if group else plain
    node["nosuchkey"] = 1
    (problem,) = problems_of(plain)
    assert problem.startswith(f"{group}.nosuchkey: " if group else "nosuchkey: ")


@pytest.mark.parametrize("key", sorted(keys_of(SacConfig)))
def test_every_key_is_needed(composed, key):
    group, _, name = key.rpartition(".")
    table = next(
        (sampler for sampler, kind in SAMPLERS.items() if group == "replay" and name in group_of(kind).keys), "uniform"
    )
    plain = composed(f"replay={table}")
    del (parent_of(plain, group) if group else plain)[name]
    problems = problems_of(plain)
    if key == "algo" or key == "algo.name":
        assert "unknown algorithm" in problems[0]
    else:
        assert problems == [f"{key}: is missing, say {key}=..."]


@pytest.mark.parametrize("group", sorted(set(GROUPS) - {"algo"}))
def test_a_value_in_place_of_a_group_is_an_error(plain, group):
    plain[group] = 3
    (problem,) = problems_of(plain)
    assert problem == f"{group}: must be a group of options, got 3"


@pytest.mark.slow
def test_the_options_of_a_sampler_come_with_it(composed):
    assert isinstance(build(composed("replay=prioritized", "replay.alpha=0.5")).replay, PrioritizedConfig)
    assert type(build(composed()).replay) is UniformConfig
    (problem,) = problems_of(composed("replay.sampler=prioritized"))
    assert problem == "replay.sampler: say replay=prioritized, which brings its options along"
    (problem,) = problems_of(composed("+replay.alpha=0.5"))
    assert problem == "replay.alpha: only replay=prioritized and replay=sequences have this option"
    (problem,) = problems_of(composed("+replay.eta=0.5"))
    assert problem == "replay.eta: only replay=prioritized and replay=sequences have this option"
    (problem,) = problems_of(composed("replay.sampler=fifo-one"))
    assert problem.startswith("replay.sampler: ")
    assert "fifo, fifo-once" in problem
    assert problem.endswith("a class of yours as my_pkg.my_mod:Class, got fifo-one. Did you mean fifo-once?")


def test_all_problems_at_once(plain):
    plain["seed"] = "x"
    plain["algo"]["lr"] = -1
    plain["worker"]["nmu"] = 1
    del plain["replay"]["capacity"]
    problems = problems_of(plain)
    assert len(problems) == 4
    assert {problem.split(":")[0] for problem in problems} == {"seed", "algo.lr", "worker.nmu", "replay.capacity"}


@pytest.mark.parametrize("value", [0, 1.5, "never", None, True])
def test_fetch_is_a_word_or_a_number(plain, value):
    for right, fetch in (("collect", "collect"), ("episode", "episode"), (3, 3), ("1e1", 10)):
        plain["worker"]["fetch"] = right
        assert build(plain).worker.fetch == fetch
    plain["worker"]["fetch"] = value
    (problem,) = problems_of(plain)
    assert problem == f"worker.fetch: must be collect, episode or int >= 1, got {shown(value)}"


def test_per_worker_exploration(plain):
    for value, wanted in (
        *((None, None), ("ladder", "ladder"), ("env_ladder", "env_ladder")),
        ([{"epsilon": "4e-1"}, {}], ({"epsilon": 0.4}, {})),
    ):
        plain["worker"]["exploration"] = value
        config = build(plain)
        assert (config.worker.exploration, build(to_yaml_keys(config))) == (wanted, config)


def test_nothing_changes_in_the_mapping(plain):
    before = copy.deepcopy(plain)
    build(plain)
    assert plain == before


@pytest.mark.parametrize(
    ("value", "typed"),
    [(1e-3, "0.001"), (0.12345678901, "0.12345678901"), (None, "null"), (True, "true"), ([64, 0.5], "[64,0.5]")],
)
def test_a_value_is_formatted_as_the_user_types_it_without_losing_digits(value, typed):
    assert (as_typed(value), yaml.safe_load(typed)) == (typed, value)


@pytest.mark.parametrize(
    ("key", "inside"), [("env", True), ("env.kwargs", True), ("env.kwargs.g", True), ("envs", False), ("worker", False)]
)
def test_a_key_is_within_its_group_but_a_longer_word_is_not(key, inside):
    assert is_within(key, ["replay", "env"]) is inside
