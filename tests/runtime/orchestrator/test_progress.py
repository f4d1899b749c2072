"""Progress: which evaluation counts as the best."""

import time

from graphs import TINY, make_config

from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.orchestrator.progress import Progress


def evaluated(progress, env_steps, mean):
    report = EvalReport(LoadParams(env_steps, env_steps, env_steps), 1.0, {"mean": mean}, 0, is_best=False)
    return progress.evaluated(report)


def test_the_best_evaluation_is_the_first_with_the_highest_mean():
    progress = Progress(make_config(*TINY), time.time())
    for env_steps, mean in [(10, -5.0), (20, -5.0), (30, -6.0), (40, -4.0), (50, -4.0)]:
        assert not evaluated(progress, env_steps, mean)
    summary = progress.summary(0.0, 0)
    assert (summary["best_step"], summary["best_return"], summary["final_return"]) == (40, -4.0, -4.0)


def test_the_goal_is_reached_at_it_and_timed_once():
    progress = Progress(make_config(*TINY, "stop.return=5"), time.time())
    assert [evaluated(progress, *report) for report in [(10, 4.9), (20, 5.0), (30, 6.0)]] == [False, True, True]
    assert progress.summary(0.0, 0)["time_to_return_env_steps"] == 20
