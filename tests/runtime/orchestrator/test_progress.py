import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from graphs import TINY, make_config
from headers import make_block, make_train_report

from drl_cli.metrics.status import Status
from drl_cli.runtime.messages import EvalReport, InsertTransition
from drl_cli.runtime.orchestrator import progress as module
from drl_cli.runtime.orchestrator.progress import LATEST, Progress
from drl_cli.runtime.orchestrator.status_fields import (
    WINDOW,
    RecentRates,
    Totals,
    constant_fields,
    left_s,
    status_fields,
    totals,
)
from drl_cli.types import Episode, LoadParams


@pytest.fixture
def clock(clock, monkeypatch):
    """A clock at 100 s; the process started at 95 s."""
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def make(*overrides, trace=None):
    return Progress(make_config(*TINY, "mode=sync", "worker.num=2", *overrides), 95.0, trace)


def header(steps, worker=0, first=0, opt_steps=0, rows=None, **options):
    span = {"first_env_step": first, "last_env_step": first + steps}
    block = make_block(steps if rows is None else rows, worker=worker, opt_steps=opt_steps, **span)
    return InsertTransition((block,), options.pop("episodes", ()), options.pop("seconds", 0.0), **options)


def trained(opt_steps, updates, skipped=0, metrics=None, seconds=0.5, replay=None, sample_s=0.1):
    made = updates - skipped
    options = {"seconds": seconds, "sample_s": sample_s, "num_batches": updates, "skipped": skipped}
    return make_train_report(opt_steps, made, metrics=metrics or {}, replay=replay or {}, **options)


def evaluated(progress, env_steps, mean):
    report = EvalReport(LoadParams(env_steps, env_steps, env_steps), 1.0, {"mean": mean}, 0, is_best=False)
    progress.evaluated(report)
    return progress.goal_reached


def test_the_best_evaluation_is_the_first_with_the_highest_mean():
    progress = make()
    for env_steps, mean in [(10, -5.0), (20, -5.0), (30, -6.0), (40, -4.0), (50, -4.0)]:
        assert not evaluated(progress, env_steps, mean)
    summary = progress.summary(0.0, 0)
    assert (summary["best_step"], summary["best_return"], summary["final_return"]) == (40, -4.0, -4.0)


def test_the_first_evaluation_at_the_goal_is_timed():
    progress = make("stop.return=5")
    assert [evaluated(progress, *report) for report in [(10, 4.9), (20, 5.0), (30, 6.0)]] == [False, True, True]
    summary = progress.summary(0.0, 0)
    assert (summary["time_to_return_env_steps"], summary["time_to_return_s"]) == (20, 1.0)


def test_rates_are_since_the_last_report(clock):
    progress = make()
    clock.now = 103.0
    progress.collected(header(40, seconds=2.0))
    progress.trained(trained(10, 10, metrics={"loss": 2.0}))
    progress.loads = 5
    clock.now = 110.0
    expected = {
        "env_steps_per_s": 4.0,
        "env_steps_per_s/worker_0": 4.0,
        "opt_steps_per_s": 1.0,
        "samples_per_s": 16.0,
        "loads_per_s": 0.5,
        "updates_per_env_step_window": 0.25,
        "update_ms": 50.0,
        "sample_ms": 10.0,
        "wall_s": 15.0,
        "opt_steps": 10,
    }
    report = progress.report(0.0)
    assert {name: report[f"perf/{name}"] for name in expected} == pytest.approx(expected)
    assert (report["train/loss"], (report["replay/inserts"], report["replay/samples"])) == (2.0, (40, 10))
    progress.collected(header(20, worker=1, first=60))
    clock.now = 114.0
    report = progress.report(0.0)
    rates = {name: value for name, value in report.items() if name.startswith("perf/env_steps_per_s")}
    tag = "perf/env_steps_per_s"
    assert rates == {tag: 5.0, f"{tag}/worker_0": 0.0, f"{tag}/worker_1": 5.0}
    assert not {"train/loss", "perf/update_ms"} & report.keys()


def test_metrics_are_means_over_updates():
    progress = make()
    progress.trained(trained(30, 30, metrics={"loss": 1.0}, seconds=0.3))
    progress.trained(trained(40, 14, skipped=4, metrics={"loss": 5.0}, seconds=0.5))
    report = progress.report(0.0)
    assert report["train/loss"] == pytest.approx((30 * 1.0 + 10 * 5.0) / 40)
    assert (report["perf/update_ms"], report["train/skipped_updates"]) == (pytest.approx(1000 * 0.8 / 40), 4)
    assert progress.counts()["samples"] == 44


def test_rates_and_waits_do_not_change_after_the_end(clock):
    progress = make()
    assert (progress.elapsed_s(), progress.wait_fracs(0.0)) == (0.0, (0.0, 0.0))
    short = make()
    short.collected(header(8))
    short.train_started = 100.0
    clock.now = 100.5
    short.trainer_idle.start(100.25)
    assert short.wait_fracs(0.25) == (0.25 / (0.5 * 2), 0.5)
    clock.now = 103.0
    progress.collected(header(40, seconds=2.0))
    progress.train_started = 101.0
    progress.trainer_idle.start(111.0)
    clock.now = 121.0
    assert progress.end() == 121.0
    clock.now = 300.0
    progress.collected(header(20))
    progress.trained(trained(10, 10))
    summary = progress.summary(8.0, 3)
    expected = {
        "start_up_s": 8.0 - 2.0,
        "env_steps_per_s": 60 / 20,
        "opt_steps_per_s": 10 / 20,
        "worker_wait_frac": 8 / (20 * 2),
        "trainer_wait_frac": 0.5,
        "wall_s": 205.0,
        "evals_skipped": 3,
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert progress.report(8.0)["perf/trainer_wait_s"] == 10.0


def test_a_train_call_that_ends_after_the_run_does_not_lower_the_trainers_waiting_time(clock):
    progress = make()
    progress.train_started = clock.now
    clock.now = 110.0
    before = totals(progress, 0.0)
    progress.end()
    clock.now = 113.0
    progress.trainer_idle.start(clock.now)  # the train call that was in flight at the end
    assert totals(progress, 0.0).trainer_wait_s == before.trainer_wait_s == 0.0
    assert (progress.report(0.0)["perf/trainer_wait_s"], progress.wait_fracs(0.0)) == (0.0, (0.0, 0.0))


def test_the_policy_lag_counts_updates_since_the_version_that_acted():
    progress = make()
    assert progress.summary(0.0, 0)["policy_lag_mean"] == 0.0
    progress.trained(trained(10, 10))
    for opt_steps, mean, largest in ((4, 6.0, 6), (10, 3.0, 6), (7, 3.0, 6)):
        progress.collected(header(8, opt_steps=opt_steps))
        summary = progress.summary(0.0, 0)
        assert (summary["policy_lag_mean"], summary["policy_lag_max"]) == (mean, largest)
    assert progress.report(0.0)["async/policy_lag"] == 3.0


def test_blocks_are_counted_and_lost_blocks_subtracted(clock):
    progress = make()
    episodes = (Episode(0, 3.0, 10), Episode(1, 5.0, 20))
    progress.collected(header(30, episodes=episodes, restarts=2, faults=("a", "b", "c"), rows=27))
    progress.collected(header(10, worker=1, episodes=episodes[:1]))
    summary = progress.summary(0.0, 0)
    names = ("env_steps", "inserts", "episodes", "worker_restarts", "env_restarts")
    assert [summary[name] for name in names] == [40, 37, 3, 2, 3]
    assert progress.finished == {0: 30, 1: 10}
    clock.now = 110.0
    progress.lost(header(10, worker=1, episodes=episodes[:1]))
    assert [progress.summary(0.0, 0)[name] for name in names] == [30, 27, 2, 2, 3]
    report = progress.report(0.0)
    assert (report["rollout/return_mean"], report["rollout/length_mean"]) == pytest.approx((11 / 3, 40 / 3))
    assert (report["rollout/episodes"], report["perf/env_steps_per_s/worker_1"]) == (2, 0.0)
    assert "rollout/return_mean" not in progress.report(0.0)


def test_info_of_environments_is_a_mean_over_the_episodes_that_have_it(clock):
    progress = make()
    infos = (
        {"success": 1.0, "cost": 4.0},
        {"success": 0.0},
        {},
        {"success": 0.0, "return_mean": 99.0, "episodes": 99.0},
    )
    progress.collected(header(30, episodes=[Episode(0, 3.0, 10, info) for info in infos[:2]]))
    progress.collected(header(10, episodes=[Episode(0, 3.0, 10, info) for info in infos[2:]]))
    report = progress.report(0.0)
    assert (report["rollout/success"], report["rollout/cost"]) == pytest.approx((1 / 3, 4.0))
    assert (report["rollout/return_mean"], report["rollout/episodes"]) == (3.0, 4)  # these names can't be replaced
    assert not {"rollout/success", "rollout/cost"} & progress.report(0.0).keys()


def test_the_ratio_counts_from_the_end_of_the_warm_up():
    progress = make()
    for steps in (60, 4):
        progress.collected(header(steps))
        assert progress.updates_per_env_step() is None
    assert progress.report(0.0)["perf/updates_per_env_step"] == 0.0
    progress.collected(header(36))
    progress.trained(trained(9, 9))
    assert progress.report(0.0)["perf/updates_per_env_step"] == progress.updates_per_env_step() == 9 / 36


@pytest.mark.parametrize(("has_replay", "paid"), [(True, 36 + 80), (False, 36 + 80 - 64)])
def test_a_resumed_run_continues_the_counts(clock, has_replay, paid):
    """Without the saved replay, the steps that fill replay again have no updates."""
    first, second = make(), make()
    first.collected(header(100, restarts=1, faults=("a",)))
    first.trained(trained(9, 10, skipped=1))
    evaluated(first, 90, -5.0)
    first.trace.add(2, 7)
    clock.now = 104.0
    second.load_state(json.loads(json.dumps(first.state())), has_replay)
    assert second.state() == first.state() | {
        "wall_s": first.wall_s() + second.process_s(),
        "warm_env_steps": first.warm_env_steps if has_replay else None,
    }
    clock.now = 110.0
    second.collected(header(80))
    assert second.report(0.0)["perf/env_steps_per_s"] == 80 / 6  # since the resume
    clock.now = 120.0
    assert (second.training_s(), second.summary(0.0, 0)["env_steps_per_s"]) == (4.0 + 10.0, 180 / 14)
    assert second.updates_per_env_step() == 9 / paid


def test_the_peak_of_the_memory_is_kept():
    progress, sizes = make(), iter([5, 3, 4])
    progress.usage = SimpleNamespace(sample=lambda: next(sizes) * 2**20, by_role=dict, by_node=dict)
    assert [progress.report(0.0)["system/rss_mb"] for _ in range(2)] == [5.0, 3.0]
    assert progress.summary(0.0, 0)["peak_rss_mb"] == 5.0


def test_skipped_updates_are_reported_at_once_and_then_with_each_report(caplog):
    progress = make()
    progress.trained(trained(8, 10, skipped=2))
    progress.trained(trained(15, 10, skipped=3))
    assert [text.split()[0] for text in caplog.messages] == ["2"]
    progress.report(0.0)
    progress.report(0.0)
    assert [text.split()[0] for text in caplog.messages] == ["2", "5"]


def test_messages_are_written_to_the_trace_file(clock, tmp_path):
    progress = make(trace=tmp_path / "trace.jsonl")
    progress.collected(header(8))
    progress.trace.add(7, member=1, version=4)
    (line,) = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert json.loads(line) == {"wall_s": 5.0, "route": 7, "count": 1, "env_steps": 8, "member": 1, "version": 4}
    assert make().trace_file is None


def test_the_rates_of_a_summary_leave_out_the_start_and_waits_for_evaluations(clock):
    progress = make()
    progress.waited_for_evaluation(50.0)  # before the first step
    clock.now = 110.0
    progress.collected(header(40, seconds=2.0))
    assert progress.training_s() == 2.0
    assert make().summary(0.0, 0)["env_steps_per_s"] == 0.0  # no time has passed: no speed is known
    progress.waited_for_evaluation(8.0)
    clock.now = 126.0
    progress.end()
    progress.waited_for_evaluation(5.0)  # the last evaluation
    summary = progress.summary(0.0, 0)
    assert (summary["training_s"], summary["env_steps_per_s"]) == (10.0, 4.0)


BEGIN = Totals(100.0, 1000, 50, 4.0, 10.0, 5.0, 1.0, 2.0, 6.0)
LATER = Totals(110.0, 1800, 90, 12.0, 20.0, 11.0, 4.0, 5.0, 11.0)
SCALARS = {"system/cpu_percent": 60.0, "replay/size": 40.0, "train/skipped_updates": 0}


def shown(*overrides):
    config = make_config(*TINY, "mode=sync", "worker.num=2", *overrides)
    return config, Progress(config, 95.0), RecentRates(2)


def collect(progress, steps, returns=(), **times):
    episodes = tuple(Episode(0, ret, 10) for ret in returns)
    progress.collected(InsertTransition((make_block(steps),), episodes, 0.0, **times))


def test_returns_and_lengths_are_means_over_the_last_episodes():
    config, progress, rates = shown()
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["train_return"], fields["train_length"], fields["train_episodes"]) == (None, None, 0)
    collect(progress, 10, returns=[1e6] * 10)
    collect(progress, 10, returns=[1.0, 2.0] * (LATEST // 2))
    progress.report(0.0)  # a report does not reset them
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["train_return"], fields["train_length"], fields["train_episodes"]) == (1.5, 10.0, LATEST)
    assert (fields["episodes"], fields["env_steps"]) == (LATEST + 10, 20)


def test_losses_and_lag_are_missing_without_new_values():
    config, progress, rates = shown()
    assert not {"losses", "policy_lag"} & status_fields(config, progress, rates, SCALARS).keys()
    scalars = SCALARS | {"train/loss": 2.0, "train/q": math.nan, "async/policy_lag": 3.0}
    fields = status_fields(config, progress, rates, scalars)
    assert (fields["losses"], fields["policy_lag"]) == ({"loss": 2.0}, 3.0)


def test_scores_and_the_best_survive_a_resume():
    config, progress, rates = shown()
    for env_steps, mean in [(10, 1.0), (20, 3.0), (30, math.nan), (40, 2.0)]:
        progress.evaluated(EvalReport(LoadParams(0, 0, env_steps), 1.0, {"mean": mean}, 0, is_best=False))
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["scores"], fields["best"]) == (((10, 1.0), (20, 3.0), (40, 2.0)), (20, 3.0))
    resumed, state = shown()[1], progress.state()
    resumed.load_state(state | {"wall_s": 50.0}, has_replay=True)
    again = status_fields(config, resumed, rates, SCALARS)
    assert (again["scores"], again["started"]) == (fields["scores"], 45.0)


def test_the_time_left_follows_from_the_recent_rate_or_the_limit(clock):
    config, progress, _ = shown("total_env_steps=1000")
    collect(progress, 200)
    assert left_s(config, progress, None) is None
    assert left_s(config, progress, 20.0) == 40.0
    clock.now = 110.0
    assert left_s(shown("total_env_steps=1000", "stop.wall_s=25")[0], progress, 20.0) == 10.0
    assert left_s(shown("total_env_steps=100")[0], progress, 20.0) == 0.0


def test_shares_of_time_follow_from_blocks_and_train_reports(clock):
    config, progress, rates = shown("total_env_steps=1100")
    rates.totals.append(totals(progress, 0.0))
    clock.now = 110.0
    collect(progress, 100, work_s=8.0, env_s=4.0, policy_s=2.0)
    progress.train_started = 105.0
    progress.trained(make_train_report(5, 5, seconds=3.5, sample_s=0.1, batch_s=0.5))
    progress.trainer_idle.start(109.0)
    rates.totals.append(totals(progress, 10.0))
    fields = status_fields(config, progress, rates, SCALARS)
    assert fields["worker_time"] == pytest.approx({"environment": 0.25, "policy": 0.125, "rows": 0.125, "waiting": 0.5})
    assert fields["trainer_time"] == pytest.approx({"batch": 0.1, "update": 0.3, "waiting": 0.6})  # 5 s before, 1 after
    assert (fields["env_steps_per_s"], fields["left_s"]) == (10.0, None)
    clock.now = 120.0
    collect(progress, 50)
    rates.totals.append(totals(progress, 10.0))
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["env_steps_per_s"], fields["left_s"]) == (7.5, 950 / 5.0)  # 5 per second since the first update
    config = shown("total_env_steps=1100", "orchestrator.min_inserts=1100", "load_weights=x")[0]
    assert status_fields(config, progress, rates, SCALARS)["left_s"] == 950 / 7.5  # without updates


def rates_of(*moments, members=2):
    rates = RecentRates(members)
    for each in moments:
        rates.totals.append(each)
    return rates.fields()


@pytest.mark.parametrize("moments", [(), (BEGIN,), (BEGIN, BEGIN)])
def test_rates_are_unknown_before_the_second_report(moments):
    unknown = dict.fromkeys(("env_steps_per_s", "opt_steps_per_s", "training_env_steps_per_s"))
    assert rates_of(*moments) == {**unknown, "worker_time": {}, "trainer_time": {}}


def test_rates_and_shares_are_those_between_two_reports():
    """Workers wait 8 of 2 x 10 s; of 10 s of work, 6 s go into environments and 3 s into the policy."""
    fields = rates_of(BEGIN, LATER)
    assert (fields["env_steps_per_s"], fields["opt_steps_per_s"]) == (80.0, 4.0)
    assert fields["worker_time"] == pytest.approx({"environment": 0.36, "policy": 0.18, "rows": 0.06, "waiting": 0.4})
    assert list(fields["worker_time"]) == ["environment", "policy", "rows", "waiting"]
    assert fields["trainer_time"] == pytest.approx({"batch": 0.2, "update": 0.5, "waiting": 0.3})
    of_one = rates_of(BEGIN, replace(LATER, worker_wait_s=9.0), members=1)["worker_time"]
    assert (of_one["waiting"], sum(of_one.values())) == (0.5, pytest.approx(1.0))
    late = rates_of(BEGIN, replace(LATER, trainer_wait_s=8.0))["trainer_time"]  # a call began before the first report
    assert late == pytest.approx({"batch": 0.0, "update": 0.4, "waiting": 0.6})


def test_shares_are_unknown_without_work():
    idle = rates_of(BEGIN, replace(LATER, work_s=BEGIN.work_s, update_s=BEGIN.update_s))
    assert (idle["worker_time"], idle["trainer_time"]) == ({}, {})


def test_rates_forget_old_reports():
    old = replace(BEGIN, moment=0.0, env_steps=-(10**6))
    new = [replace(BEGIN, moment=100.0 + 2 * i, env_steps=1000 + 20 * i) for i in range(WINDOW + 1)]
    assert rates_of(old, *new)["env_steps_per_s"] == 10.0


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [(("orchestrator.sample_insert_ratio=0.3",), 0.3), (("orchestrator.limiter=none",), None), (("algo=ppo",), None)],
)
def test_a_ratio_is_shown_if_a_limiter_holds_it(overrides, asked):
    config = shown(*overrides)[0]
    status = Status(**constant_fields(config))
    assert status.ratio_asked == asked
    assert (status.total_env_steps, status.replay_capacity, status.workers) == (512, config.replay.capacity, 2)
    assert status.is_on_policy == ("algo=ppo" in overrides)


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda", "cuda:1"])
@pytest.mark.parametrize(
    ("choice", "on_cpu", "on_gpu"),
    [("auto", True, False), ("replay", True, False), ("true", True, True), ("false", False, False)],
)
def test_the_live_line_advises_compilation_where_a_gpu_compiles_nothing(device, choice, on_cpu, on_gpu):
    status = Status(**constant_fields(shown(f"device={device}", f"trainer.compile={choice}")[0]))
    assert status.compiles == (on_gpu if device.startswith("cuda") else on_cpu)
