"""Standing: what the status says of a run's counters."""

import math
from types import SimpleNamespace

import pytest
from graphs import TINY, make_config
from headers import make_block, make_train_report

from drl_cli.metrics.status import Status
from drl_cli.runtime.messages import EvalReport, InsertTransition, LoadParams
from drl_cli.runtime.orchestrator import progress as progress_module
from drl_cli.runtime.orchestrator.progress import LATEST, Progress
from drl_cli.runtime.orchestrator.rates import RecentRates
from drl_cli.runtime.orchestrator.status_fields import constant_fields, left_s, status_fields
from drl_cli.types import Episode

SCALARS = {"system/cpu_percent": 60.0, "replay/size": 40.0, "train/skipped_updates": 0}


@pytest.fixture
def clock(monkeypatch):
    """The time [s], 100 at first; the process started at 95."""
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


def test_the_means_are_over_the_last_episodes_of_training():
    config, progress, rates = make()
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["train_return"], fields["train_length"], fields["train_episodes"]) == (None, None, 0)
    collect(progress, 10, returns=[1e6] * 10)
    collect(progress, 10, returns=[1.0, 2.0] * (LATEST // 2))
    progress.report(0.0)  # what a report takes is not gone
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["train_return"], fields["train_length"], fields["train_episodes"]) == (1.5, 10.0, LATEST)
    assert (fields["episodes"], fields["env_steps"]) == (LATEST + 10, 20)


def test_what_a_report_lacks_stays_as_it_was():
    config, progress, rates = make()
    assert not {"losses", "policy_lag"} & status_fields(config, progress, rates, SCALARS).keys()
    scalars = SCALARS | {"train/loss": 2.0, "train/q": math.nan, "async/policy_lag": 3.0}
    fields = status_fields(config, progress, rates, scalars)
    assert (fields["losses"], fields["policy_lag"]) == ({"loss": 2.0}, 3.0)


def test_evaluations_come_with_the_best_and_go_on_after_a_resume():
    config, progress, rates = make()
    for env_steps, mean in [(10, 1.0), (20, 3.0), (30, math.nan), (40, 2.0)]:
        progress.evaluated(EvalReport(LoadParams(0, 0, env_steps), 1.0, {"mean": mean}, 0, is_best=False))
    fields = status_fields(config, progress, rates, SCALARS)
    assert (fields["scores"], fields["best"]) == (((10, 1.0), (20, 3.0), (40, 2.0)), (20, 3.0))
    resumed = make()[1]
    state = progress.state()
    resumed.load_state(state, has_replay=True)
    assert status_fields(config, resumed, rates, SCALARS)["scores"] == fields["scores"]
    del state["scores"]  # of a checkpoint that was written before there were any
    resumed = make()[1]
    resumed.load_state(state, has_replay=True)
    assert tuple(resumed.scores) == ()


def test_the_time_that_is_left_follows_from_the_recent_pace(clock):
    config, progress, rates = make("total_env_steps=1000")
    rates.add(progress.totals(0.0))
    assert left_s(config, progress, rates) is None
    clock.now = 110.0
    collect(progress, 200)
    rates.add(progress.totals(0.0))
    assert left_s(config, progress, rates) == 40.0
    assert left_s(make("total_env_steps=1000", "stop.wall_s=25")[0], progress, rates) == 10.0
    assert left_s(make("total_env_steps=100")[0], progress, rates) == 0.0


def test_shares_of_time_come_from_what_roles_say(clock):
    config, progress, rates = make()
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
    assert fields["env_steps_per_s"] == 10.0


def test_a_resumed_run_is_as_old_as_all_of_it(clock):
    config, progress, rates = make()
    progress.wall_before_s = 50.0
    assert status_fields(config, progress, rates, SCALARS)["started"] == 45.0


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        (("orchestrator.sample_insert_ratio=0.3",), 0.3),
        (("orchestrator.limiter=none",), None),
        (("algo=ppo",), None),
    ],
)
def test_a_ratio_is_asked_where_something_holds_it(overrides, asked):
    config = make(*overrides)[0]
    status = Status(**constant_fields(config))
    assert status.ratio_asked == asked
    assert (status.total_env_steps, status.replay_capacity, status.workers) == (512, config.replay.capacity, 2)
    assert status.is_on_policy == ("algo=ppo" in overrides)
