import logging

import numpy as np
import pytest
from choices import some
from graphs import TINY, make_config, workers

from drl_cli.config.exploration import all_exponents, average, describe, exploration_problems, worker_values
from drl_cli.run_folder.run_json import run_record
from drl_cli.utils.run_clock import linear

CHOOSE = ("env=drl_cli.envs.probes:Choose-v0", "algo=dqn")
MODES = pytest.mark.parametrize(
    ("mode", "proxies"), some([("single", 0), ("sync", 2), ("async", 0), ("async", 2)], ("single", 0), ("async", 2))
)


def ladder(value, num):
    return [worker_values("ladder", {"epsilon": value}, index, num)["epsilon"] for index in range(num)]


def test_the_ladders_are_those_of_ape_x():
    """0.4 ** (1 + 7 i / (N - 1)) for N = 8, computed by hand."""
    wanted = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    assert (ladder(0.4, 8), ladder(0.4, 2)) == (pytest.approx(wanted), pytest.approx([0.4, 0.4**8]))
    assert ladder(0.4, 1) == [0.4]
    for num in (1, 2, 4, 8):  # "env_ladder" gives the same values, however the environments are shared
        parts = [worker_values("env_ladder", {"epsilon": 0.4}, index, num, 8 // num)["epsilon"] for index in range(num)]
        assert np.concatenate(parts) == pytest.approx(wanted)
    assert worker_values("env_ladder", {"epsilon": 0.4}, 0, 1, 1)["epsilon"] == pytest.approx([0.4])


def test_all_exponents_lists_the_ladder_by_worker():
    assert all_exponents("ladder", 3, 8) == [1.0, 4.5, 8.0]
    assert all_exponents("env_ladder", 2, 2) == [[1.0, 3.333333], [5.666667, 8.0]]
    assert all_exponents(None, 3, 8) is all_exponents(({"epsilon": 0.1},), 3, 8) is None


def test_list_entries_go_to_workers_in_turn_and_other_values_follow_the_schedule():
    setting = ({"epsilon": 0.4}, {"sigma": 0.05})
    got = [worker_values(setting, {"epsilon": 0.9, "sigma": 0.8}, index, 3) for index in range(3)]
    assert got == [{"epsilon": 0.4, "sigma": 0.8}, {"epsilon": 0.9, "sigma": 0.05}, {"epsilon": 0.4, "sigma": 0.8}]


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        (None, ["the schedule"] * 3),
        ("ladder", ["value ** 1", "value ** 4.5", "value ** 8"]),
        ("env_ladder", [f"value ** {steps}, by environment" for steps in ("1 to 2.4", "3.8 to 5.2", "6.6 to 8")]),
        (({"epsilon": 0.4}, {}), ["{'epsilon': 0.4}", "{}", "{'epsilon': 0.4}"]),
    ],
)
def test_describe(setting, texts):
    assert [describe(setting, index, 3, 2) for index in range(3)] == texts


def test_average_over_the_workers():
    assert average(({"epsilon": 0.4}, {"epsilon": 0.1}), {"epsilon": 0.9}, 3) == {"epsilon": pytest.approx(0.3)}
    wanted = sum(0.4**exponent for exponent in (1, 10 / 3, 17 / 3, 8)) / 4
    assert average("env_ladder", {"epsilon": 0.4}, 2, 2)["epsilon"] == pytest.approx(wanted)
    assert average(None, {"epsilon": 0.9}, 3) == {"epsilon": pytest.approx(0.9)}


@pytest.mark.parametrize(
    ("setting", "known", "words"),
    [
        (({"epsilon": 0.1}, {"lr": 0.1}), ("epsilon",), ["'lr'", "may differ", "dqn has: epsilon"]),
        (({"epsilon": 0.1},), (), ["no exploration values"]),
        ("ladder", (), ["no exploration values"]),
        ((), ("epsilon",), ["empty list"]),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(setting, known, words):
    (problem,) = exploration_problems(setting, "dqn", known)
    assert all(word in problem for word in words)


@pytest.mark.parametrize("setting", [None, "ladder", "env_ladder", ({"epsilon": 0.1},), ({}, {"epsilon": 0.1})])
def test_a_setting_that_fits_is_accepted(setting):
    assert exploration_problems(setting, "dqn", ("epsilon",)) == []


@MODES
@pytest.mark.parametrize(
    ("setting", "wanted", "logged"),
    [
        ("ladder", [0.4 ** (1 + 7 * i / 3) for i in range(4)], ["** 1", "** 3.33", "** 5.67", "** 8"]),
        (
            "env_ladder",
            [0.4 ** (1 + 7 * np.arange(4 * i, 4 * i + 4) / 15) for i in range(4)],
            [f"{steps}, by environment" for steps in ("** 1 to 2.4", "2.87 to 4.27", "4.73 to 6.13", "6.6 to 8")],
        ),
        ("[{epsilon:0.3},{}]", [0.3, 0.4, 0.3, 0.4], ["{'epsilon': 0.3}", "{}", "{'epsilon': 0.3}", "{}"]),
    ],
)
def test_each_worker_explores_by_its_own_values_and_logs_them(
    build_graph, caplog, mode, proxies, setting, wanted, logged
):
    caplog.set_level(logging.INFO, "drl_cli")
    fixed = ("worker.num=4", "worker.random_steps=0", "algo.epsilon_start=0.4", "algo.epsilon_end=0.4")
    graph = build_graph(*CHOOSE, *fixed, f"mode={mode}", f"worker.proxies={proxies}", f"worker.exploration={setting}")
    reports = []
    graph.manage.report = lambda scalars, env_steps: reports.append(scalars)
    graph.run()
    graph.finish()
    for worker, epsilon in zip(workers(graph), wanted, strict=True):
        assert worker.policy.exploration["epsilon"] == pytest.approx(epsilon)
    assert reports[-1]["rollout/epsilon"] == pytest.approx(np.mean(wanted))
    lines = [record.getMessage() for record in caplog.records if "explores by" in record.getMessage()]
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert all(line.endswith(end) for line, end in zip(lines, logged, strict=True))


def test_run_json_has_the_ladder_by_worker(tmp_path):
    config = make_config(*TINY, "env=CartPole-v1", "algo=apex", "mode=async", "worker.num=2")
    assert run_record(config, tmp_path, [])["exploration_exponents"] == all_exponents("env_ladder", 2, 4)


@MODES
def test_workers_explore_by_the_value_of_their_version(build_graph, mode, proxies):
    schedule = ("worker.random_steps=128", "algo.epsilon_steps=300", "algo.epsilon_end=0.2", "worker.num=2")
    pace = ("orchestrator.sample_load_ratio=1", f"mode={mode}", f"worker.proxies={proxies}")
    graph = build_graph(*CHOOSE, *schedule, *pace)
    seen, reports = [], []
    graph.manage.report = lambda scalars, env_steps: reports.append(scalars)

    def watch(worker, collect):
        def collect_and_note(params_header, *params):
            result = collect(params_header, *params)
            seen.append((worker.index, params_header, worker.policy.exploration["epsilon"]))
            return result

        worker.collect = collect_and_note

    for worker in workers(graph):
        watch(worker, worker.collect)
    graph.run()
    graph.finish()
    for _, params_header, epsilon in seen:
        assert epsilon == linear(params_header.env_steps, 1.0, 0.2, 300) == params_header.exploration["epsilon"]
        assert params_header.env_steps % graph.collector.rows == 0
    for index in (0, 1):
        values = [epsilon for worker, _, epsilon in seen if worker == index]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) > 3
        assert any(params_header.random_actions for worker, params_header, _ in seen if worker == index)
    assert (min(epsilon for *_, epsilon in seen), reports[-1]["rollout/epsilon"]) == (0.2, 0.2)


@pytest.mark.parametrize(("mode", "num"), some([("single", 1), ("sync", 2), ("async", 4)], ("async", 4)))
def test_ape_x_keeps_its_ratio_and_its_ladder(run_graph, mode, num):
    graph = run_graph(
        *("env=CartPole-v1", "algo=apex", "total_env_steps=1200", "orchestrator.sample_insert_ratio=0.5"),
        *(f"mode={mode}", f"worker.num={num}"),
    )
    progress, (table,) = graph.progress, [shard.role.table for shard in graph.replay.shards]
    assert progress.updates_per_env_step() == pytest.approx(0.5, rel=0.02)
    assert progress.trace.counts[5] == progress.trace.counts[4] > 0
    epsilon = np.concatenate([member.handle.role.policy.exploration["epsilon"] for member in graph.pool.members])
    last = 4 * num - 1
    assert epsilon == pytest.approx([0.4 ** (1 + 7 * i / last) for i in range(last + 1)])
    values = table.sampler.tree.values[: len(table)]
    assert len(np.unique(values)) > 0.9 * len(table)  # none has the largest one of the time
    assert table.stats()["bad_priorities"] == 0


def test_workers_that_join_later_explore_like_the_first():
    for setting in ("ladder", "env_ladder"):
        first, later = (worker_values(setting, {"epsilon": 0.4}, index, 3, 2)["epsilon"] for index in (1, 4))
        assert np.array_equal(first, later)
