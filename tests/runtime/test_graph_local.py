import hashlib
import io
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from choices import some
from counting import check_counter_rows
from graphs import COUNTER, TINY, at, make_config, on_collected, weights, workers
from handles import by_name

from drl_cli.envs.make import read_spec
from drl_cli.errors import RoleLost, UserCodeFailed
from drl_cli.metrics.console import Console
from drl_cli.run_folder.checkpoint import EVALUATION
from drl_cli.runtime import process_graph
from drl_cli.runtime.edges import manage_link
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.place.ray_runtime import RayRuntime
from drl_cli.runtime.process_graph import build
from drl_cli.runtime.roles import manage as manage_module
from drl_cli.runtime.roles.evaluator import Score
from drl_cli.runtime.roles.manage import Manage

MODES = ("single", "sync", "async")


@pytest.mark.slow
@pytest.mark.parametrize("replay", some(["uniform", "prioritized"], "prioritized"))
def test_equal_seeds_give_equal_weights(run_graph, replay):
    """Single, sync and sync with proxies also give equal weights."""

    def run(mode, *more, seed=3):
        graph = run_graph(COUNTER, f"mode={mode}", "worker.num=2", f"replay={replay}", f"seed={seed}", *more)
        assert graph.progress.opt_steps > 50
        return weights(graph), graph.progress.trace.counts

    (single, _), (sync, counts), (by_async, _) = (run(mode) for mode in MODES)
    assert run("single")[0] == single == sync
    assert run("async")[0] == by_async
    assert run("sync", seed=4)[0] != sync
    for proxies in (1, 2):
        proxied, proxy_counts = run("sync", f"worker.proxies={proxies}")
        assert proxied == sync
        assert proxy_counts[1] == counts[1]
        assert proxy_counts[2] == counts[2] * proxies // 2


@pytest.mark.slow
@pytest.mark.parametrize("shards", some([1, 2], 1))
def test_rows_have_the_same_age_in_single_and_sync(run_graph, shards):
    options = (
        *("env=Pendulum-v1", "algo=dr_q", "worker.num=2", f"replay.shards={shards}", "total_env_steps=320"),
        *("trainer.compile=false", "manage.eval_episodes=1", "manage.max_episode_steps=5"),
    )
    runs = [("single", 0.98), ("sync", 0.98), ("single", 1)]
    single, sync, plain = (run_graph(*options, f"mode={mode}", f"replay.age_factor={x}") for mode, x in runs)
    assert single.progress.opt_steps > 60
    assert weights(single) == weights(sync) != weights(plain)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ratio", [0.3, pytest.param(1.0, marks=pytest.mark.exhaustive)])
def test_counters_mean_the_same_in_every_mode(run_graph, mode, ratio):
    graph = run_graph(
        COUNTER, f"mode={mode}", "worker.num=2", "total_env_steps=2000", f"orchestrator.sample_insert_ratio={ratio}"
    )
    progress = graph.progress
    assert 2000 <= progress.env_steps < 2000 + 2 * graph.collector.rows
    assert progress.inserts == progress.env_steps  # n_step=1 leaves no row open
    assert progress.samples == progress.opt_steps
    assert progress.updates_per_env_step() == pytest.approx(ratio, rel=0.02)
    counts = progress.trace.counts
    assert all(counts[route] > 0 for route in (1, 2, 3, 4, 6, 7, 8))
    assert counts[5] == 0  # uniform replay wants no priorities
    assert "replay/stale_priorities" not in progress.report(0.0)
    assert counts[1] == counts[2] == progress.env_steps // graph.collector.rows
    assert counts[7] == counts[8] <= 2 * progress.loads  # a version goes to each worker once, some never
    assert counts[6] == progress.loads


@pytest.mark.parametrize(("mode", "proxies"), some([("single", 0), ("sync", 1), ("async", 0)], ("sync", 1)))
def test_workers_give_their_rows_a_first_priority(run_graph, mode, proxies):
    graph = run_graph(
        "env=drl_cli.envs.probes:Choose-v0", "algo=dqn", f"mode={mode}", "worker.num=2", f"worker.proxies={proxies}",
        "replay=prioritized", "replay.initial_priority=worker", "algo.n_step=3", "total_env_steps=256",
        "orchestrator.min_inserts=300",
    )  # fmt: skip
    assert graph.progress.opt_steps == 0  # so all rows were made, and are rated, by version 0
    (table,) = (shard.role.table for shard in graph.replay.shards)
    policy = workers(graph)[0].policy
    assert len(table) == 256
    rated = (policy.priorities(table.contents()).astype(np.float64) + 1e-6) ** 0.6
    assert len(np.unique(rated)) > 5
    assert table.sampler.tree.values[:256] == pytest.approx(rated, rel=1e-5)


@pytest.mark.parametrize("n_step", some([1, 3], 3))
@pytest.mark.parametrize(
    ("mode", "proxies"), some([("single", 0), ("sync", 1), ("async", 0), ("async", 1)], ("single", 0), ("async", 1))
)
def test_every_transition_arrives_once_and_in_order(run_graph, mode, n_step, proxies):
    graph = run_graph(
        COUNTER, f"mode={mode}", "worker.num=2", f"algo.n_step={n_step}", f"worker.proxies={proxies}", "seed=9"
    )
    rows = get(by_name(graph.replay.shards[0], "contents"))
    assert len(rows["reward"]) == graph.progress.inserts
    check_counter_rows(rows, n_step, 0.95, graph.progress.env_steps)


@pytest.mark.parametrize("mode", some(MODES, "sync", "async"))
@pytest.mark.parametrize("replay", some(["uniform", "prioritized"], "prioritized"))
def test_shards_share_the_rows_and_the_counters_are_exact(run_graph, mode, replay):
    graph = run_graph(COUNTER, f"mode={mode}", f"replay={replay}", "replay.shards=3", "worker.num=2", "algo.n_step=2")
    parts = [get(by_name(shard, "contents")) for shard in graph.replay.shards]
    assert all(len(part["reward"]) > 0 for part in parts)
    assert sum(len(part["reward"]) for part in parts) == graph.progress.inserts
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort(rows["obs"].T[::-1])  # by environment, episode, step
    check_counter_rows({name: column[order] for name, column in rows.items()}, 2, 0.95, graph.progress.env_steps)
    assert graph.progress.samples == graph.progress.opt_steps
    assert graph.progress.updates_per_env_step() == pytest.approx(0.25, rel=0.02)
    if replay == "prioritized":
        stats = graph.progress.report(0.0)
        assert stats["replay/stale_priorities"] == stats["replay/bad_priorities"] == 0
        assert graph.progress.trace.counts[5] == graph.progress.trace.counts[4]
        assert stats["replay/beta"] == 1.0
        tables = [shard.role.table for shard in graph.replay.shards]
        assert all(len(np.unique(table.sampler.tree.values[: len(table)])) > 50 for table in tables)


def test_messages_share_no_memory(build_graph):
    graph = build_graph(COUNTER, "mode=single")
    params_header, params = (get(ref) for ref in by_name(graph.trainers["trainer"], "publish", 0, 0, results=2))
    trainer = graph.trainers["trainer"].role
    before = trainer.algorithm.policy_params().copy()
    params[:] = 7
    assert np.array_equal(trainer.algorithm.policy_params(), before)
    worker = graph.pool.members[0].handle.role
    _, columns = worker.collect(params_header, before)
    kept = columns["obs"].copy()
    worker.collect(params_header)
    assert np.array_equal(columns["obs"], kept)
    store = graph.replay.shards[0].role.table.store
    store.insert(columns)
    columns["obs"][:] = -5
    assert not (store.columns["obs"][: len(kept)] == -5).any()


def test_stop_at_return(run_graph):
    graph = run_graph(COUNTER, "mode=async", "stop.return=5", "manage.eval_period=128", "total_env_steps=100000")
    assert graph.stop_reason == "return"
    assert graph.progress.env_steps < 1000
    assert graph.progress.time_to_return.mean >= 5
    assert [report.statistics["episodes"] for report in graph.evaluations] == [4, 4]  # 2, and 2 that confirm


def test_an_unconfirmed_score_does_not_stop_the_run(build_graph):
    graph = build_graph(COUNTER, "mode=sync", "stop.return=5", "manage.eval_period=128")
    graph.manage.poll()
    manage = graph.manage.handle.role
    manage.score(np.zeros(graph.trainers["trainer"].role.algorithm.policy_params().shape, np.float32))
    lucky, unlucky = manage.evaluators
    unlucky.evaluate = lambda params: Score(np.full(2, -100.0), np.ones(2, np.int64), 0)
    graph.run()
    graph.finish()
    assert graph.stop_reason == "total_env_steps"
    assert graph.progress.best.mean < 5 < lucky.evaluate(get(graph.learning.params)).returns.mean()


@pytest.mark.parametrize(
    ("returns", "episodes"),
    [
        ([[4.0, 5.0]], 2),  # below the goal of 5
        ([[6.0, 6.0], [6.0, 6.0]], 4),  # above it, no doubt
        ([[6.0, 6.0], [0.0, 0.0]], 4),  # not borne out
        ([[0.0, 12.0], [0.0, 12.0], [6.0]], 5),  # in doubt to the end
        ([[6.0, 6.0], [6.0, 6.1], [0.0]], 4),  # the second half is not needed
        ([[4.5, 7.5], [4.5, 7.5], [6.0]], 5),  # 1.3 standard errors above it are doubt
        ([[5.2, 6.8], [5.2, 6.8]], 4),  # 2.5 are none
    ],
)
def test_confirming_continues_while_the_mean_is_in_doubt(build_graph, returns, episodes):
    graph = build_graph(COUNTER, "mode=sync", "stop.return=5")
    graph.manage.poll()
    manage = graph.manage.handle.role
    parts = [Score(np.array(part), np.ones(len(part), np.int64), 0) for part in returns]
    manage._play = lambda part, params: parts[part]
    assert len(manage.score(np.zeros(1)).returns) == episodes


@pytest.mark.parametrize(("confirm", "sizes"), [(0, [2]), (1, [2, 1]), (5, [2, 3, 2]), (100, [2, 50, 50])])
def test_an_evaluation_is_confirmed_in_two_halves(build_graph, monkeypatch, confirm, sizes):
    seeds = []

    def make_evaluator(config, spec, own_seeds, program):
        seeds.append(own_seeds)
        returns = np.where(np.arange(len(own_seeds)) % 2, -4.0, 16.0)  # above the goal, in doubt
        return SimpleNamespace(evaluate=lambda params: Score(returns, np.ones(len(returns), np.int64), 0))

    monkeypatch.setattr(manage_module, "make_evaluator", make_evaluator)
    graph = build_graph(COUNTER, "mode=sync", "stop.return=5", f"manage.confirm_episodes={confirm}")
    graph.manage.poll()
    assert len(graph.manage.handle.role.score(np.zeros(1)).returns) == sum(sizes)
    assert [len(part) for part in seeds] == sizes
    assert len({seed for part in seeds for seed in part}) == sum(sizes)


@pytest.mark.parametrize("mode", MODES)
def test_pause_stops_all_traffic_and_resume_goes_on(build_graph, mode):
    graph = build_graph(COUNTER, f"mode={mode}", "worker.num=2", "logger.report_s=0.01")
    idle, seen = graph.idle, []

    def watch(**options):
        counts = dict(graph.progress.trace.counts)
        seen.append((graph.limiter.inserts, graph.progress.samples, graph.progress.loads, counts))
        if len(seen) == 40:  # what was under way has ended long before
            graph.paused = False
        idle(**options)

    def pause():
        graph.paused = True
        graph.idle = watch

    at(graph, 200, pause)
    graph.run()
    assert seen[36] == seen[37] == seen[38] == seen[39]
    assert graph.progress.env_steps >= 512


def test_single_mode_trains_and_evaluates_though_ray_does_not_start(tmp_path, caplog):
    def no_ray():
        raise RoleLost("Ray did not start: too slow")

    config = make_config(*TINY, COUNTER, "mode=single")
    (tmp_path / "checkpoints").mkdir()
    console = Console("quiet", io.StringIO(), 0.0)
    runtime = RayRuntime(str(tmp_path), no_ray, nodes=["here"])
    graph = build(config, read_spec(config.env), tmp_path, Progress(config, 0.0), console, ray=runtime)
    graph.run()
    graph.finish()
    assert graph.progress.env_steps == 512
    assert graph.progress.last.params_header.opt_steps == graph.progress.opt_steps > 0
    assert "Ray did not start: too slow; evaluations run in this process" in caplog.text
    assert graph.reports.edges.is_cluster


@pytest.mark.slow
def test_workers_take_turns_if_the_limiter_admits_one(build_graph):
    """The trainer is slower, so after warm-up the limiter admits one collect call at a time."""
    args = ("mode=async", "worker.num=3", "orchestrator.band=16", "orchestrator.gather_window_s=0")
    graph = build_graph(COUNTER, *args, "total_env_steps=1280")
    blocks = Counter()
    on_collected(graph, lambda header: blocks.update(block.worker for block in header.blocks))
    graph.run()
    assert sorted(blocks) == [0, 1, 2]
    assert max(blocks.values()) - min(blocks.values()) <= 1


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("network=late_parts:Torso", "no idea"),
        ("network=late_parts:ActingTorso", "no idea"),
        ("replay.sampler=late_parts:Rows", "no rows"),
    ],
)
def test_errors_of_the_users_parts_name_their_module_in_every_role(build_graph, override, says):
    with pytest.raises(UserCodeFailed, match=rf"^late_parts raised Lost: {says} \(.*late_parts\.py:\d+\)$"):
        build_graph(COUNTER, "mode=sync", override).run()


SYNC = ("mode=sync", "worker.num=2")
ARGS = (COUNTER, "manage.eval_period=128", "stop.return=5", "total_env_steps=2000", "logger.report_s=0.1")
SLOW = 300


class Scripted(Manage):
    """Scores a version with its env steps / 100."""

    def evaluate(self, params_header, params):
        self.mean = params_header.env_steps / 100
        return super().evaluate(params_header, params)

    def score(self, params):
        return Score(np.full(2, self.mean), np.ones(2, np.int64), 0)


@pytest.fixture
def slowly(run_graph, monkeypatch):
    """Run a graph that looks `delay` times for the result of an evaluation; a signal ends the run at `stop_at`."""
    monkeypatch.setattr(process_graph, "Manage", Scripted)
    looks, wait = {}, manage_link.wait

    def is_ready(ref):
        if isinstance(ref.value, EvalReport):
            looks[id(ref)] = looks.get(id(ref), 0) + 1
        return looks.get(id(ref), math.inf) > slowly.delay

    monkeypatch.setattr(manage_link, "wait", lambda refs, timeout_s: [r for r in wait(refs, timeout_s) if is_ready(r)])

    def slowly(*overrides, delay, stop_at=None, **options):
        def started(graph):
            idle = graph.idle

            def with_signal(**options):
                idle(**options)
                if stop_at is not None and graph.progress.env_steps >= stop_at:
                    graph.interrupt()

            graph.idle = with_signal

        looks.clear()
        slowly.delay = delay
        return run_graph(*ARGS, *overrides, started=started, **options)

    return slowly


def result(graph):
    best = hashlib.sha256((graph.folder / "checkpoints/best/model.safetensors").read_bytes()).hexdigest()
    steps = [int(line.split(",")[0]) for line in (graph.folder / "eval.csv").read_text().splitlines()[1:]]
    return graph.progress.env_steps, weights(graph), best, steps, [step for step, _ in graph.progress.scores]


@pytest.mark.slow
@pytest.mark.parametrize(
    "args", [pytest.param(("mode=single",), id="single"), pytest.param(SYNC, id="sync", marks=pytest.mark.exhaustive)]
)
def test_a_run_ends_at_the_same_step_however_long_its_evaluations_take(slowly, args):
    graphs = [slowly(*args, delay=delay) for delay in (0, 1, SLOW)]
    first, *others = [result(graph) for graph in graphs]
    assert others == [first] * 2
    assert [(graph.stop_reason, graph.manage.skipped) for graph in graphs] == [("return", 0)] * 3
    assert first[3] == [128, 256, 384, 512, first[0]]
    assert 512 + 32 <= first[0] <= 512 + 64  # a quarter of the period later


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, SLOW], ids=["evaluated", "evaluating"])
@pytest.mark.parametrize("stop_at", some([384, 512], 384))
def test_a_resumed_run_repeats_the_evaluation_that_a_signal_left_undecided(slowly, delay, stop_at):
    args = ("mode=single", "worker.block_rows=16")
    whole = slowly(*args, delay=0)
    part = slowly(*args, delay=delay, stop_at=stop_at)
    assert (part.progress.env_steps, part.stop_reason) == (stop_at, "signal")
    assert (part.folder / "checkpoints/last" / EVALUATION).exists()
    rest = slowly(*args, delay=1, run=part.folder)
    assert result(rest) == result(whole)
    assert not (rest.folder / "checkpoints/last" / EVALUATION).exists()


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [440, 600])
def test_a_decided_evaluation_is_not_repeated(slowly, stop_at):
    part = slowly("mode=single", "stop.return=1000", delay=0, stop_at=stop_at)
    assert not (part.folder / "checkpoints/last" / EVALUATION).exists()


@pytest.mark.slow
def test_async_does_not_wait_for_an_evaluation(slowly):
    graph = slowly("mode=async", "stop.return=1", delay=SLOW)
    assert (graph.stop_reason, graph.reports.undecided) == ("total_env_steps", None)
    assert graph.manage.skipped > 0
