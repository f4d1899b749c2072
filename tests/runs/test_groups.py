"""Which runs belong together, and what they are called."""

import pytest
from run_folders import make_run

from drl_cli.runs.groups import grouped, pooled_keys, unshown_keys
from drl_cli.runs.run import Run


@pytest.fixture
def runs(tmp_path):
    """Make runs of these changes, and give their groups as label -> seeds."""

    def make(*changes, by=(), commands=()):
        commands = commands or [()] * len(changes)
        pairs = enumerate(zip(changes, commands, strict=True))
        return grouped([Run(make_run(tmp_path, f"r{i}", command=c, **change)) for i, (change, c) in pairs], by)

    return make


def labels(groups):
    return {group.label: [run.config["seed"] for run in group.runs] for group in groups}


def test_seeds_belong_together_wherever_and_however_they_are_written(runs):
    found = runs({"seed": 0}, {"seed": 1, "output_dir": "x", "logger__console_s": 1.0, "checkpoint__period": 5})
    assert labels(found) == {"algo=dqn mode=single": [0, 1]}
    assert found[0].env == "Pole"


def test_a_label_has_only_what_differs_sorted_by_value(runs):
    found = runs({"algo__lr": 1e-2}, {"algo__lr": 1e-3, "seed": 1}, {"algo__lr": 1e-2, "seed": 2}, {"algo__lr": 9e-5})
    assert list(labels(found).items()) == [("algo.lr=9e-05", [0]), ("algo.lr=0.001", [1]), ("algo.lr=0.01", [0, 2])]


def test_two_keys_that_differ_together_are_both_shown(runs):
    found = runs({"mode": "sync", "algo__lr": 1e-2}, {"mode": "async", "algo__lr": 1e-3})
    assert list(labels(found)) == ["algo.lr=0.001 mode=async", "algo.lr=0.01 mode=sync"]
    assert unshown_keys(found) == []


def test_algorithms_stand_for_the_options_they_bring_and_those_are_named_beside(runs):
    ppo = {"algo__name": "ppo", "algo__gae_lambda": 0.9, "replay__sampler": "fifo-once"}
    found = runs({}, ppo, ppo | {"algo__lr": 1e-4})
    assert list(labels(found)) == ["algo=dqn", "algo=ppo algo.lr=0.0001", "algo=ppo algo.lr=0.001"]
    assert unshown_keys(found) == ["replay.sampler"]
    assert pooled_keys(found) == []


def test_environments_are_never_pooled_and_their_options_do_not_mix(runs):
    found = runs({}, {"env__name": "Lander", "algo__lr": 0.5}, {"env__name": "Lander", "algo__lr": 0.5, "seed": 1})
    assert [(group.env, group.label, len(group.runs)) for group in found] == [
        ("Lander", "algo=dqn mode=single", 2),
        ("Pole", "algo=dqn mode=single", 1),
    ]
    assert unshown_keys(found) == []


def test_options_of_another_sampler_follow_from_it(runs):
    found = runs({}, {"replay__sampler": "prioritized", "replay__alpha": 0.6})
    assert list(labels(found)) == ["replay.sampler=prioritized", "replay.sampler=uniform"]


def test_but_having_an_argument_of_the_environment_or_not_is_a_difference(runs):
    found = runs({}, {"env__kwargs": {"g": 5.0}})
    assert set(labels(found)) == {"env.kwargs.g=null", "env.kwargs.g=5"}


def test_what_a_run_measured_tells_it_apart_only_where_it_was_typed(runs):
    auto = runs({"trainer__threads": 1}, {"trainer__threads": 2, "seed": 1})
    assert labels(auto) == {"algo=dqn mode=single": [0, 1]}


def test_typed_threads_tell_runs_apart(runs):
    typed = runs(
        {"trainer__threads": 1},
        {"trainer__threads": 2, "seed": 1},
        commands=[["trainer.threads=1"], ["trainer.threads=2"]],
    )
    assert labels(typed) == {"trainer.threads=1": [0], "trainer.threads=2": [1]}


def test_by_groups_by_these_keys_alone_and_what_is_pooled_can_be_said(runs):
    changes = [{"mode": mode, "algo__lr": lr} for mode in ("sync", "async") for lr in (0.1, 0.2)]
    found = runs(*changes, {"mode": "sync", "env__name": "Lander"}, by=["mode"])
    assert [(group.env, group.label, len(group.runs)) for group in found] == [
        ("Lander", "mode=sync", 1),
        ("Pole", "mode=async", 2),
        ("Pole", "mode=sync", 2),
    ]
    assert pooled_keys(found) == ["algo.lr"]
    assert unshown_keys(found) == []


def test_by_takes_the_short_names(runs):
    found = runs({}, {"algo__name": "ppo"}, by=["algo"])
    assert list(labels(found)) == ["algo=dqn", "algo=ppo"]


def test_values_are_shown_as_they_are_typed(runs):
    found = runs({"stop__return": None, "network__hidden": [64, 64]}, {"stop__return": 200.0, "network__hidden": [8]})
    assert list(labels(found)) == ["stop.return=200 network.hidden=[8]", "stop.return=null network.hidden=[64,64]"]


def test_a_value_that_all_runs_of_a_group_have(runs):
    (group,) = runs({"stop__return": 5.0}, {"stop__return": 5.0, "seed": 1}, {"stop__return": 7.0}, by=["mode"])
    assert group.common("mode") == "single"
    assert group.common("stop.return") is None
