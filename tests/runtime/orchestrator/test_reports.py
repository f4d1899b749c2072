import io
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from graphs import COUNTER, TINY, make_config
from headers import make_insert

from drl_cli.metrics.console import Console
from drl_cli.runtime.messages import EvalReport, ProcessKey, ProcessUse
from drl_cli.runtime.orchestrator import reports as module
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.reports import Reports
from drl_cli.runtime.orchestrator.status_fields import RecentRates
from drl_cli.runtime.place.handles import LocalRef
from drl_cli.runtime.place.told import News
from drl_cli.types import LoadParams


class Sink:
    """A manage that records its calls."""

    def __init__(self):
        self.reports, self.evaluated = [], []

    def report(self, scalars, env_steps):
        self.reports.append((scalars, env_steps))

    def evaluate(self, load, params):
        self.evaluated.append(load.env_steps)


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def make(sink, clock):
    """Reports at second 100, when the workers have waited for 3 s; they wait on."""

    def make_it(*overrides):
        config = make_config(*TINY, "mode=async", "worker.num=2", "manage.eval_period=100", *overrides)
        pool = SimpleNamespace(wait_seconds=lambda moment: moment - 97.0)
        edges = Edges(
            pool,
            replay=None,
            trainers={"trainer": SimpleNamespace(told=News)},
            server=None,
            manage=sink,
            reanalyzers=None,
            share=None,
        )
        console = Console("quiet", io.StringIO(), time.time())
        reanalysis = SimpleNamespace(pool=SimpleNamespace(members=[]))
        made = Reports(config, edges, Progress(config, time.time()), console, reanalysis)
        made.clock = clock
        return made

    return make_it


def test_a_report_goes_to_manage_and_the_console(make, sink):
    made = make("logger.report_s=10")
    assert made.next == 110.0
    made.clock.now, made.progress.env_steps = 105.0, 77
    made.send(LoadParams(1, 2, 3))
    assert made.next == 115.0
    ((scalars, env_steps),) = sink.reports
    assert made.console.status.env_steps == 77
    assert (env_steps, scalars["perf/worker_wait_s"]) == (77, 8.0)


def test_on_a_cluster_each_report_asks_all_roles_for_their_use_and_takes_what_has_arrived(make):
    made = make()

    class Role:
        def __init__(self, name, number):
            self.use = ProcessUse(name, ProcessKey("elsewhere", number, 1.0), 2.5, 2**20)

        def uses(self):
            return LocalRef([self.use])

    names = ("worker 0", "reanalyzer 0", "replay 0", "trainer", "parameter server", "manage")
    worker, reanalyzer, shard, trainer, server, manage = (Role(name, i) for i, name in enumerate(names))
    pools = [SimpleNamespace(members=[SimpleNamespace(handle=each)]) for each in (worker, reanalyzer)]
    edges = {"pool": pools[0], "reanalyzers": pools[1], "replay": SimpleNamespace(shards=[shard])}
    edges |= {"trainers": {"trainer": trainer}, "server": server, "manage": SimpleNamespace(handle=manage)}
    made.edges = replace(made.edges, **edges)
    for is_cluster, roles in ((False, set()), (True, set()), (True, set(names))):
        made.edges = replace(made.edges, is_cluster=is_cluster)
        made.send(LoadParams(1, 2, 3))
        assert made.progress.usage.by_role().keys() - {"main", "ray"} == roles


def test_an_offline_run_writes_no_series_of_workers(make, sink):
    made = make("mode=offline", "data.source=recorded.npz", "total_updates=10")
    made.progress.opt_steps = 4
    made.send(LoadParams(1, 2, 3))
    ((scalars, _),) = sink.reports
    assert "perf/opt_steps_per_s" in scalars
    without = ("rollout/", "perf/worker", "perf/env_steps", "perf/updates_per_env_step", "perf/loads")
    assert not [tag for tag in scalars if tag.startswith(without)]


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        (("mode=async",), {"async/policy_lag"}),
        (("mode=async", "trainer.on_nonfinite=skip"), {"async/policy_lag", "train/skipped_updates"}),
        (("mode=single",), set()),
    ],
)
def test_a_series_that_would_be_zero_for_ever_is_not_written(make, sink, words, tags):
    made = make(*words)
    made.progress.collected(make_insert(40))
    made.send(LoadParams(1, 2, 3))
    ((scalars, _),) = sink.reports
    asked = ("async/policy_lag", "train/skipped_updates")
    assert {tag for tag in asked if tag in scalars} == tags


def test_the_state_of_the_status_follows_the_run(make):
    made = make("orchestrator.min_inserts=64", "stop.return=5")

    def status():
        return made.console.status.state, made.console.status.awaited

    made.send(LoadParams(1, 2, 3))
    assert status() == ("starting", "the first steps of the workers")
    made.progress.collected(make_insert(40))
    made.send(LoadParams(1, 2, 3))
    assert status() == ("running", "warm-up 40/64")
    made.progress.collected(make_insert(40, number=1, first_env_step=40))
    made.send(LoadParams(1, 2, 3), "paused")
    assert status() == ("paused", "the first update")
    made.progress.train_started = 3.0
    made.send(LoadParams(1, 2, 3))
    assert (status(), (made.console.status.goal, made.console.status.workers)) == (("running", ""), (5.0, 2))
    made.ending("the last checkpoint")
    made.send(LoadParams(1, 2, 3))
    assert status() == ("ending", "the last checkpoint")


def test_a_wait_for_the_compiler_is_told_with_its_seconds(make):
    made = make("orchestrator.min_inserts=32")
    made.pool.running_steps = lambda finished: 0
    made.progress.collected(make_insert(40))
    made.progress.train_started = 3.0

    def told_at_a_tick_and_in_a_report(waited_s):
        since = [] if waited_s is None else [time.time() - waited_s, time.time() - waited_s / 2]  # of two trainers
        made.trainers = [SimpleNamespace(told=lambda at=at: News((), at)) for at in (*since, None)]
        made.console.update(**made.console.measure())
        told = made.console.status.awaited
        made.send(LoadParams(1, 2, 3))
        return {told, made.console.status.awaited}

    assert told_at_a_tick_and_in_a_report(module.SHORT_S / 2) == {""}
    assert told_at_a_tick_and_in_a_report(41.2) == {"the compiler (later runs reuse its result), 41 s so far"}
    assert told_at_a_tick_and_in_a_report(None) == {""}
    assert made.console.status.awaits_s is None


def test_a_rollout_after_a_wait_for_the_compiler_is_not_taken_for_the_wait(make):
    made = make()
    made.console.update(awaits=module.COMPILER, awaits_s=41.2)
    assert made.with_compiler({"awaits": "rollout", "done": 1}) == {"awaits": "rollout", "done": 1, "awaits_s": None}
    assert made.with_compiler({}) == {"awaits": "", "awaits_s": None}
    made.ending("the last checkpoint")
    assert made.console.status.awaited == "the last checkpoint"


def test_the_last_report_awaits_nothing_and_always_has_rates(make):
    made = make()
    made.progress.collected(make_insert(40))
    made.ending("the last checkpoint")
    made.send(LoadParams(1, 2, 3))
    assert (made.console.status.awaits, made.console.status.env_steps_per_s) == ("the last checkpoint", None)
    made.rates = RecentRates(2)
    made.progress.training_s, made.progress.opt_steps = lambda: 8.0, 4
    shown, made.console.display.report = [], lambda status: shown.append(status)
    made.send(LoadParams(1, 2, 3), is_last=True)
    ((status, again),) = zip(shown, [made.console.status], strict=True)
    assert (status.state, status.awaits, status.left_s) == ("ending", "", 0.0)
    assert (status.env_steps_per_s, status.opt_steps_per_s) == (5.0, 0.5)
    assert (again.state, again.awaits) == ("ending", "the last checkpoint")
    made.clock.now += 1.0
    made.send(LoadParams(1, 2, 3), is_last=True)
    assert made.console.status.env_steps_per_s == 0.0  # the recent rate, known from two reports


def test_exploration_is_a_mean_over_the_workers(make, sink):
    made = make("env=CartPole-v1", "algo=dqn", "worker.exploration=ladder")
    made.send(LoadParams(1, 2, 3, exploration={"epsilon": 0.5}))
    assert sink.reports[0][0]["rollout/epsilon"] == pytest.approx((0.5 + 0.5**8) / 2)


def test_a_version_is_evaluated_every_eval_period_but_not_at_the_end(make, sink):
    made = make("total_env_steps=400")
    for env_steps in (0, 99, 100, 120, 199, 250, 299, 310, 400, 450):
        made.published(LoadParams(env_steps, env_steps, env_steps), None)
    assert sink.evaluated == [100, 250, 310]


@pytest.mark.parametrize(("mean", "reason"), [(4.0, None), (5.0, "return")])
def test_an_evaluation_is_shown_and_ends_the_run_at_the_goal(build_graph, monkeypatch, mean, reason):
    graph, shown = build_graph(COUNTER, "stop.return=5"), []
    display = SimpleNamespace(evaluation=lambda status, *score: shown.append((status.best, *score)))
    graph.reports.console.display = display
    graph.manage.on_evaluation(EvalReport(LoadParams(1, 2, 30), 1.0, {"mean": mean}, 0, is_best=True))
    assert (graph.is_done(), graph.stop_reason) == (reason is not None, reason)
    assert shown == [((30, mean), {"mean": mean}, 30, True)]
