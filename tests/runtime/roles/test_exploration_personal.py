"""Workers that explore each in its own way."""

import logging

import numpy as np
import pytest
from graphs import TINY, make_config

from drl_cli.runtime.roles import exploration
from drl_cli.runtime.roles.exploration import average, describe, exploration_problems, personal, rungs
from drl_cli.runtime.run_folder import run_record


def ladder(value, num):
    return [personal("ladder", {"epsilon": value}, index, num)["epsilon"] for index in range(num)]


def test_without_a_setting_all_explore_by_the_schedule():
    assert personal(None, {"epsilon": 0.3}, 2, 4) == {"epsilon": 0.3}


def test_the_ladder_is_that_of_ape_x():
    """0.4 ** (1 + 7 i / (N - 1)) for N = 8, computed by hand."""
    wanted = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    assert ladder(0.4, 8) == pytest.approx(wanted)
    assert ladder(0.4, 2) == pytest.approx([0.4, 0.4**8])


def test_a_single_worker_on_the_ladder_explores_by_the_schedule():
    assert ladder(0.4, 1) == [0.4]


def check_environments(personal):
    """Raise AssertionError where the environments of all workers are not the steps of one ladder, whoever has them."""
    whole = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    for num in (1, 2, 4, 8):
        shares = [personal("env_ladder", {"epsilon": 0.4}, index, num, 8 // num)["epsilon"] for index in range(num)]
        assert np.concatenate(shares) == pytest.approx(whole)
    assert personal("env_ladder", {"epsilon": 0.4}, 0, 1, 1)["epsilon"] == pytest.approx([0.4])


def test_each_environment_has_a_step_of_the_ladder():
    check_environments(personal)


@pytest.mark.parametrize(
    "exponent", [lambda index, num: 1.0, lambda index, num: 1 + 7 * index / num], ids=["alike", "no end"]
)
def test_a_broken_ladder_is_found(monkeypatch, exponent):
    """The same for all, and one that never gets to its end."""
    monkeypatch.setattr(exploration, "ladder", exponent)
    with pytest.raises(AssertionError):
        check_environments(personal)


def test_the_steps_of_the_ladder_are_told_by_worker():
    assert rungs("ladder", 3, 8) == [1.0, 4.5, 8.0]
    assert rungs("env_ladder", 2, 2) == [[1.0, 3.333333], [5.666667, 8.0]]
    assert rungs(None, 3, 8) is rungs(({"epsilon": 0.1},), 3, 8) is None


def test_a_list_is_taken_in_turn_and_leaves_the_rest_to_the_schedule():
    setting = ({"epsilon": 0.4}, {"sigma": 0.05})
    got = [personal(setting, {"epsilon": 0.9, "sigma": 0.8}, index, 3) for index in range(3)]
    assert got == [
        {"epsilon": 0.4, "sigma": 0.8},
        {"epsilon": 0.9, "sigma": 0.05},
        {"epsilon": 0.4, "sigma": 0.8},
    ]


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        (None, ["the schedule"] * 3),
        ("ladder", ["value ** 1", "value ** 4.5", "value ** 8"]),
        ("env_ladder", [f"value ** {steps}, by environment" for steps in ("1 to 2.4", "3.8 to 5.2", "6.6 to 8")]),
        (({"epsilon": 0.4}, {}), ["{'epsilon': 0.4}", "{}", "{'epsilon': 0.4}"]),
    ],
)
def test_what_is_said_of_each_worker(setting, texts):
    assert [describe(setting, index, 3, 2) for index in range(3)] == texts


def test_the_average_over_the_workers():
    assert average(({"epsilon": 0.4}, {"epsilon": 0.1}), {"epsilon": 0.9}, 3) == {"epsilon": pytest.approx(0.3)}
    assert average("env_ladder", {"epsilon": 0.4}, 2, 2)["epsilon"] == pytest.approx(
        sum(0.4**exponent for exponent in (1, 10 / 3, 17 / 3, 8)) / 4
    )
    assert average(None, {"epsilon": 0.9}, 3) == {"epsilon": pytest.approx(0.9)}


@pytest.mark.parametrize(
    ("setting", "has", "words"),
    [
        (({"epsilon": 0.1}, {"lr": 0.1}), ("epsilon",), ["'lr'", "may differ", "dqn has: epsilon"]),
        (({"hidden": 3.0},), ("epsilon",), ["'hidden'", "may differ"]),
        (({"epsilon": 0.1},), (), ["no exploration values"]),
        ("ladder", (), ["no exploration values"]),
        ((), ("epsilon",), ["empty list"]),
    ],
)
def test_what_may_not_differ_is_refused(setting, has, words):
    (problem,) = exploration_problems(setting, "dqn", has)
    assert all(word in problem for word in words)


@pytest.mark.parametrize("setting", [None, "ladder", "env_ladder", ({"epsilon": 0.1},), ({}, {"epsilon": 0.1})])
def test_what_may_differ_is_taken(setting):
    assert exploration_problems(setting, "dqn", ("epsilon",)) == []


DQN = (
    *("env=drl_cli.envs.probes:Choose-v0", "algo=dqn", "worker.num=4", "worker.random_steps=0"),
    *("algo.epsilon_start=0.4", "algo.epsilon_end=0.4"),
)


@pytest.mark.parametrize("mode", ["single", "sync", "async"])
@pytest.mark.parametrize("proxies", [0, 2])
@pytest.mark.parametrize(
    ("setting", "wanted", "logged"),
    [
        ("ladder", [0.4 ** (1 + 7 * i / 3) for i in range(4)], ["** 1", "** 3.33", "** 5.67", "** 8"]),
        (
            "env_ladder",
            [0.4 ** (1 + 7 * np.arange(4 * i, 4 * i + 4) / 15) for i in range(4)],
            [
                "** 1 to 2.4, by environment",
                "2.87 to 4.27, by environment",
                "4.73 to 6.13, by environment",
                "6.6 to 8, by environment",
            ],
        ),
        ("[{epsilon:0.3},{}]", [0.3, 0.4, 0.3, 0.4], ["{'epsilon': 0.3}", "{}", "{'epsilon': 0.3}", "{}"]),
    ],
)
def test_every_worker_explores_in_its_own_way_and_says_so(build_graph, caplog, mode, proxies, setting, wanted, logged):
    caplog.set_level(logging.INFO, "drl_cli")
    graph = build_graph(*DQN, f"mode={mode}", f"worker.proxies={proxies}", f"worker.exploration={setting}")
    reports = []
    graph.manage.report = lambda scalars, env_steps: reports.append(scalars)
    graph.run()
    graph.finish()
    members = graph.pool.members
    if proxies:
        members = [worker for member in members for worker in member.handle.role.pool.members]
    for member, epsilon in zip(members, wanted, strict=True):
        assert member.handle.role.policy.epsilon == pytest.approx(epsilon)
    assert reports[-1]["rollout/epsilon"] == pytest.approx(np.mean(wanted))
    lines = [record.getMessage() for record in caplog.records if "explores by" in record.getMessage()]
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert all(line.endswith(end) for line, end in zip(lines, logged, strict=True))


def test_run_json_has_the_ladder_by_worker(tmp_path):
    config = make_config(*TINY, "env=CartPole-v1", "algo=apex", "mode=async", "worker.num=2")
    assert (
        run_record(config, tmp_path, [])["exploration_exponents"] == rungs("env_ladder", 2, 4) != rungs("ladder", 2, 4)
    )
