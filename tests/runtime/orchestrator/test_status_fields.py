import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from graphs import TINY, make_config
from headers import make_block, make_train_report

from drl_cli.metrics.status import Status
from drl_cli.runtime.messages import EvalReport, InsertTransition, LoadParams
from drl_cli.runtime.orchestrator import progress as progress_module
from drl_cli.runtime.orchestrator.progress import LATEST, Progress
from drl_cli.runtime.orchestrator.rates import WINDOW, RecentRates, Totals
from drl_cli.runtime.orchestrator.status_fields import constant_fields, left_s, status_fields
from drl_cli.types import Episode

BEGIN = Totals(100.0, 1000, 50, 4.0, 10.0, 5.0, 1.0, 2.0, 6.0)
LATER = Totals(110.0, 1800, 90, 12.0, 20.0, 11.0, 4.0, 5.0, 11.0)
SCALARS = {"system/cpu_percent": 60.0, "replay/size": 40.0, "train/skipped_updates": 0}


@pytest.fixture
def clock(monkeypatch):
    """A clock at 100 s; the process started at 95 s."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress_module, "now", lambda: clock.now)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def make(*overrides):
    config = make_config(*TINY, "mode=sync", "worker.num=2", *overrides)
    return config, Progress(config, 95.0), RecentRates(2)


def collect(progress, steps, returns=(), **times):
    episodes = tuple(Episode(0, ret, 10) for ret in returns)
    progress.collected(InsertTransition((make_block(steps),), episodes, 0.0, **times))


def test_returns_and_lengths_are_means_over_the_last_episodes():
    config, progress, rates = make()
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["train_return"], fields["train_length"], fields["train_episodes"]) == (None, None, 0)
    collect(progress, 10, returns=[1e6] * 10)
    collect(progress, 10, returns=[1.0, 2.0] * (LATEST // 2))
    progress.report(0.0)  # a report does not reset them
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["train_return"], fields["train_length"], fields["train_episodes"]) == (1.5, 10.0, LATEST)
    assert (fields["episodes"], fields["env_steps"]) == (LATEST + 10, 20)


def test_losses_and_lag_are_missing_without_new_values():
    config, progress, rates = make()
    assert not {"losses", "policy_lag"} & status_fields(config, progress, rates, SCALARS).keys()
    scalars = SCALARS | {"train/loss": 2.0, "train/q": math.nan, "async/policy_lag": 3.0}
    fields = status_fields(config, progress, rates, scalars)
    assert (fields["losses"], fields["policy_lag"]) == ({"loss": 2.0}, 3.0)


def test_scores_and_the_best_survive_a_resume():
    config, progress, rates = make()
    for env_steps, mean in [(10, 1.0), (20, 3.0), (30, math.nan), (40, 2.0)]:
        progress.evaluated(EvalReport(LoadParams(0, 0, env_steps), 1.0, {"mean": mean}, 0, is_best=False))
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["scores"], fields["best"]) == (((10, 1.0), (20, 3.0), (40, 2.0)), (20, 3.0))
    resumed = make()[1]
    state = progress.state()
    resumed.load_state(state | {"wall_s": 50.0}, has_replay=True)
    again = status_fields(config, resumed, rates, SCALARS)
    assert (again["scores"], again["started"]) == (fields["scores"], 45.0)
    del state["scores"]  # a checkpoint of an older version
    resumed = make()[1]
    resumed.load_state(state, has_replay=True)
    assert tuple(resumed.scores) == ()


def test_the_time_left_follows_from_the_recent_rate_or_the_limit(clock):
    config, progress, _ = make("total_env_steps=1000")
    collect(progress, 200)
    assert left_s(config, progress, None) is None
    assert left_s(config, progress, 20.0) == 40.0
    clock.now = 110.0
    assert left_s(make("total_env_steps=1000", "stop.wall_s=25")[0], progress, 20.0) == 10.0
    assert left_s(make("total_env_steps=100")[0], progress, 20.0) == 0.0


def test_shares_of_time_follow_from_blocks_and_train_reports(clock):
    config, progress, rates = make("total_env_steps=1100")
    rates.add(progress.totals(0.0))
    clock.now = 110.0
    collect(progress, 100, work_s=8.0, env_s=4.0, policy_s=2.0)
    progress.train_started = 105.0
    progress.trained(make_train_report(5, 5, seconds=3.5, sample_s=0.1, batch_s=0.5))
    progress.trainer_idle.start(109.0)
    rates.add(progress.totals(10.0))
    fields = status_fields(config, progress, rates, SCALARS)
    assert fields["worker_time"] == pytest.approx({"environment": 0.25, "policy": 0.125, "rows": 0.125, "waiting": 0.5})
    assert fields["trainer_time"] == pytest.approx({"batch": 0.1, "update": 0.3, "waiting": 0.6})  # 5 s before, 1 after
    assert (fields["env_steps_per_s"], fields["left_s"]) == (10.0, None)
    clock.now = 120.0
    collect(progress, 50)
    rates.add(progress.totals(10.0))
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["env_steps_per_s"], fields["left_s"]) == (7.5, 950 / 5.0)  # 5 per second since the first update
    config = make("total_env_steps=1100", "orchestrator.min_inserts=1100", "load_weights=x")[0]
    assert status_fields(config, progress, rates, SCALARS)["left_s"] == 950 / 7.5  # without updates


def rates_of(*totals, members=2):
    rates = RecentRates(members)
    for each in totals:
        rates.add(each)
    return rates.fields()


@pytest.mark.parametrize("totals", [(), (BEGIN,)])
def test_rates_are_unknown_before_the_second_report(totals):
    unknown = {"env_steps_per_s": None, "opt_steps_per_s": None, "worker_time": {}, "trainer_time": {}}
    assert rates_of(*totals) == unknown


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
    config = make(*overrides)[0]
    status = Status(**constant_fields(config))
    assert status.ratio_asked == asked
    assert (status.total_env_steps, status.replay_capacity, status.workers) == (512, config.replay.capacity, 2)
    assert status.is_on_policy == ("algo=ppo" in overrides)
