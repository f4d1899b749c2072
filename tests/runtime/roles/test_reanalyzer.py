import os
import signal

import numpy as np
import pytest
from graphs import TINY, make_config
from test_worker_processes import process

from drl_cli.envs.make import read_spec
from drl_cli.errors import AlgorithmRefused, RoleLost
from drl_cli.runtime.factories import make_replay, make_trainer
from drl_cli.runtime.messages import SampleBatch
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.roles.reanalyzer import Reanalyzer
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams, gathered

SEARCHES = ("algo=gumbel_muzero", "mode=async", "reanalyzer.num=1", "algo.simulations=4", "reanalyzer.windows=4")
SMALL = (*TINY, "env=CartPole-v1", *SEARCHES, "replay.capacity=64")
SAMPLED = ("algo=sampled_muzero", "algo.candidates=5", "env.normalize_obs=true")
PENDULUM, PARTS = (("env=Pendulum-v1", *SAMPLED), ("env=everything:Everything-v0", *SAMPLED))
HEADER = LoadParams(3, 48, 64)


def inserted(answer):
    header, columns = answer
    return [header], columns


class Made:
    """A replay of 64 steps of a worker with some parameters, and a re-analyser, which gets others."""

    def __init__(self, *overrides):
        self.config = make_config(*SMALL, *overrides)
        self.spec = read_spec(self.config.env)
        self.manager = make_replay(self.config, self.spec, 0)
        self.worker = Worker(self.config, self.spec, 0, 0)
        self.old = make_trainer(self.config, self.spec, "cpu", 0).publish(0, 0)[1]
        self.new = self.old + np.random.default_rng(1).normal(0.0, 0.1, self.old.shape).astype(np.float32)
        if self.config.env.normalize_obs:
            self.new[-6:] = (0.1, 0.2, 0.3, 1.5, 1.5, 1.5)  # means and deviations of the observations
        self.collect(2)
        self.role = Reanalyzer(self.config, self.spec, 0, 0)

    def collect(self, blocks):
        for _ in range(blocks):
            self.manager.insert(*inserted(self.worker.collect(LoadParams(2, 32, 32), self.old)))

    def reanalyze(self):
        drawn, columns = self.manager.draw(SampleBatch(1, 4, 3))
        return drawn, *self.role.reanalyze(drawn, columns, HEADER, self.new)


@pytest.mark.parametrize("overrides", [(), PENDULUM, PARTS], ids=["gumbel", "sampled", "parts"])
def test_stored_values_become_those_of_a_search_with_the_new_parameters(overrides):
    made = Made(*overrides)
    before = made.manager.contents()
    drawn, report, values = made.reanalyze()
    ids = np.unique(drawn.row_ids[drawn.row_ids >= 0])
    assert report.steps == (drawn.row_ids >= 0).sum() > 0
    made.manager.update_priorities(values)
    after, policy = made.manager.contents(), make_policy(made.config, made.spec, 9)
    policy.load(made.new)
    found = policy.reanalyze(gathered(before)["obs"])
    assert {"policy", "root_value", "is_random"} <= found.keys()
    others = np.setdiff1d(np.arange(64), ids)
    for name, column in found.items():
        np.testing.assert_allclose(after[name][ids], column[ids], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(after[name][others], before[name][others])
    assert np.abs(after["root_value"][ids] - before["root_value"][ids]).max() > 1e-3
    for name in before.keys() - found.keys():
        np.testing.assert_array_equal(after[name], before[name])


def test_rows_that_were_overwritten_during_the_search_are_skipped():
    made = Made()
    drawn, _, values = made.reanalyze()
    made.collect(1)  # 32 of the 64 rows are new
    before = made.manager.contents()
    made.manager.update_priorities(values)
    after = made.manager.contents()  # the rows with the ids 32 to 95
    kept = np.unique(drawn.row_ids[drawn.row_ids >= 32])
    changed = np.flatnonzero(after["root_value"] != before["root_value"])
    assert (drawn.row_ids < 32).any()
    assert 0 < len(changed) <= len(kept)
    assert set(changed + 32) <= set(kept.tolist())
    versions = made.manager.table.target_version  # of the rows with the ids 64 to 95, then 32 to 63
    assert (versions[:32] == 2).all()
    assert set(versions[32:]) == {2, 3}


def test_observations_are_normalised_by_the_statistics_of_the_version():
    made, found = Made(*PENDULUM), []
    policy, obs = make_policy(made.config, made.spec, 9), made.manager.contents()["obs"]
    for mean in (0.0, 1.0):
        made.new[-6:] = (mean, mean, mean, 1.0, 1.0, 1.0)
        policy.load(made.new)
        found.append(policy.reanalyze(obs + np.float32(mean))["root_value"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-3)


def test_a_later_call_keeps_the_parameters():
    made = Made()
    drawn, columns = made.manager.draw(SampleBatch(1, 4, 3))
    _, first = made.role.reanalyze(drawn, columns, HEADER, made.new)
    _, second = made.role.reanalyze(drawn, columns)
    assert np.all(first.columns["target_version"] == 3)
    assert np.all(second.columns["target_version"] == 3)


def test_the_age_of_drawn_targets_falls_with_re_analysis():
    made = Made()
    made.manager.sample(SampleBatch(1, 16, 7))
    assert made.manager.table.stats()["target_age"] == 5.0  # version 2 acted
    for _ in range(60):
        made.manager.update_priorities(made.reanalyze()[2])
    made.manager.sample(SampleBatch(1, 16, 7))
    assert made.manager.table.stats()["target_age"] == pytest.approx(4.0, abs=0.1)
    assert made.manager.sample(SampleBatch(1, 16, 7))[0].row_ids is None  # the trainer writes nothing


def test_random_actions_have_targets_only_after_re_analysis():
    made = Made()
    made.manager.insert(*inserted(made.worker.collect(LoadParams(2, 32, 32, random_actions=True))))
    made.manager.insert(*inserted(made.worker.collect(LoadParams(2, 32, 32, random_actions=True))))
    assert made.manager.contents()["is_random"].all()
    drawn, _, values = made.reanalyze()
    made.manager.update_priorities(values)
    ids = np.unique(drawn.row_ids[drawn.row_ids >= 0])
    assert (
        np.flatnonzero(~made.manager.contents()["is_random"]).tolist()
        == (ids - made.manager.table.inserts + 64).tolist()
    )


@pytest.mark.parametrize(
    ("columns", "text"),
    [({"visits": np.zeros((64, 2))}, "visits has shape"), ({"policy": np.zeros((64, 3))}, r"rows have \(64, 2\)")],
)
def test_columns_that_rows_do_not_have_are_refused(columns, text):
    made = Made()
    made.role.policy.reanalyze = lambda obs: columns
    with pytest.raises(AlgorithmRefused, match=text):
        made.reanalyze()


@pytest.mark.slow
def test_a_run_in_one_process_searches_again_and_a_resumed_one_goes_on_with_its_ratio(run_graph, build_graph):
    args = (*SMALL[len(TINY) :], "replay.capacity=4000")
    first = run_graph(*args, "total_env_steps=512")
    done, start = first.reanalysis.done, first.reanalysis.start
    assert first.progress.reanalyzed_steps == done > 0
    assert abs(done - (first.progress.inserts - start)) <= first.reanalysis.band / 2 + 64
    ages = first.replay.shards[0].role.table.target_version
    assert ages.max() > 0
    assert first.progress.report(0.0)["replay/target_age"] >= 0.0
    assert first.progress.summary(0.0, 0)["reanalyzed_steps"] == done
    graph = build_graph(*args, "total_env_steps=768", run=first.folder)
    assert (graph.reanalysis.done, graph.reanalysis.start) == (done, start)
    assert graph.progress.reanalyzed_steps == done
    graph.run()
    graph.finish()
    assert graph.progress.reanalyzed_steps > done
    assert graph.reanalysis.pool.members[0].incarnation == 1


@pytest.mark.ray
def test_a_killed_re_analyser_is_replaced_and_the_count_goes_on(build_graph, caplog):
    args = ("total_env_steps=1000000", "replay.capacity=20000", "reanalyzer.max_restarts=1")
    graph = build_graph(*SMALL[len(TINY) :], *args, on_ray=True)
    reanalyzed, killed, counts = graph.progress.reanalyzed, [], []

    def kill(report):
        reanalyzed(report)
        counts.append(graph.progress.reanalyzed_steps)
        if len(killed) == len(graph.reanalysis.pool.restart_seconds) and len(killed) < 2:
            killed.append(process(graph, "reanalyzer-0"))
            os.kill(killed[-1], signal.SIGKILL)

    graph.progress.reanalyzed = kill
    with pytest.raises(RoleLost, match=r"reanalyzer 0 died .*; 1 restarts are used up \(reanalyzer.max_restarts\)"):
        graph.run()
    assert (len(set(killed)), graph.progress.reanalyzer_restarts) == (2, 1)
    assert counts == sorted(counts)
    assert any(
        "reanalyzer 0 died (its process ended unexpectedly), restarted 1/1 in" in line for line in caplog.messages
    )
