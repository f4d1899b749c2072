from types import SimpleNamespace

import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.runtime.orchestrator.reports import SLOW_S, RunningCollects


@pytest.fixture
def shown(clock):
    """Return the fields at a time [s] with this number of running steps."""
    clock.now = 0.0

    def make(*overrides, collected=None, missing=0, trained=None):
        progress = SimpleNamespace(
            env_steps=1000,
            finished={},
            collect_started=collected,
            missing_inserts=lambda: missing,
            train_started=trained,
        )
        config = make_config(*TINY, *overrides)
        pool = SimpleNamespace(num_workers=config.num_workers)
        collects = RunningCollects(config, pool, progress)

        def at(moment, steps):
            clock.now, pool.running_steps = moment, lambda finished: steps
            return collects.fields()

        return at

    return make


def test_the_first_rollout_has_its_speed(shown):
    at = shown("env=CartPole-v1", "algo=ppo", "worker.num=2", "worker.envs=4", "worker.block_rows=512")
    assert at(1.0, 0) == at(9.0, 0) == {"env_steps": 1000}
    assert at(10.0, 20) == {"env_steps": 1020}
    rollout = {"awaits": "rollout", "needed": 1024}
    assert at(12.0, 60) == {"env_steps": 1060, "done": 60, "done_per_s": 20.0, **rollout}
    assert at(14.0, 120) == {"env_steps": 1120, "done": 120, "done_per_s": 25.0, **rollout}
    assert at(15.0, 8) == {"env_steps": 1008}  # the next rollout


def test_later_rollouts_are_shown_only_if_they_take_long(shown):
    at = shown("env=CartPole-v1", "algo=ppo", collected=5.0)
    assert (at(1.0, 1), at(1.0 + SLOW_S, 2)) == ({"env_steps": 1001}, {"env_steps": 1002})
    assert at(1.1 + SLOW_S, 3)["awaits"] == "rollout"


def test_a_warm_up_counts_running_steps(shown):
    warming = shown(COUNTER, "orchestrator.min_inserts=500", missing=300)
    warming(0.0, 10)
    assert warming(1.0, 40) == {"env_steps": 1040, "awaits": "warm-up", "done": 240, "needed": 500, "done_per_s": 30.0}
    warm = shown(COUNTER, missing=-1)
    warm(0.0, 10)
    assert warm(1.0, 40) == {"env_steps": 1040}


def test_a_warm_up_is_as_new_as_the_steps(shown):
    """The last report may be old: its count of the warm-up would contradict the steps beside it."""
    at = shown(COUNTER, "orchestrator.min_inserts=500", collected=5.0, missing=300)
    assert at(0.0, 0) == {"env_steps": 1000, "awaits": "warm-up", "done": 200, "needed": 500}
    assert at(1.0, 40) == {"env_steps": 1040, "awaits": "warm-up", "done": 240, "needed": 500}
    assert at(2.0, 340) == {"env_steps": 1340, "awaits": "warm-up", "done": 500, "needed": 500}
    over = {"done": None, "needed": None}
    assert shown(COUNTER, collected=5.0, missing=-9)(0.0, 0) == {
        "env_steps": 1000,
        "awaits": "the first update",
        **over,
    }
    assert shown(COUNTER, collected=5.0, missing=-9, trained=6.0)(0.0, 0) == {"env_steps": 1000, "awaits": "", **over}
