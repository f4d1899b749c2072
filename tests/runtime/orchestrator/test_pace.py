"""Pace: which call may be made next."""

from types import SimpleNamespace

import pytest
from graphs import TINY, make_config

from drl_cli.runtime.orchestrator.pace import Pace
from drl_cli.runtime.orchestrator.rate_limiter import RateLimiter

PPO = ("algo=ppo", "algo.minibatch_size=8")


def make(*overrides, landed=1000, samples=0, free=False, band=1e9, env_steps=0, **changes):
    """The pace of a run of 512 steps, in the middle of it; `changes` of its hand-over and of its learning."""
    config = make_config(*TINY, "mode=async", *overrides)
    hand_over = SimpleNamespace(issued=256, rows=32, arrived=[], pool=SimpleNamespace(busy={}))
    learning = SimpleNamespace(training=0, publishing=False, params=object(), call_updates=4)
    for name, value in changes.items():
        setattr(hand_over if hasattr(hand_over, name) else learning, name, value)
    limiter = RateLimiter(0.25, 64, band, free, landed, landed, samples)
    return Pace(config, limiter, SimpleNamespace(env_steps=env_steps), hand_over, learning)


@pytest.mark.parametrize(("issued", "env_steps", "is_random"), [(96, 96, True), (127, 0, True), (128, 0, False)])
def test_random_steps_are_those_that_were_issued_first(issued, env_steps, is_random):
    """Counted by what has landed they would be more, by all that was under way then."""
    assert make("worker.random_steps=128", issued=issued, env_steps=env_steps).is_random() == is_random


@pytest.mark.parametrize(
    ("overrides", "given", "updates"),
    [
        ((), {}, 4),
        ((), {"training": 1}, 4),  # the next batch is drawn while the present one trains
        ((), {"training": 2}, 0),
        (PPO, {}, 4),
        (PPO, {"training": 1}, 0),
        ((), {"landed": 63}, 0),
        ((), {"band": 0.0, "samples": 231}, 0),
        # 234 are paid for; when all steps have been issued no more than these are made
        ((), {"samples": 231, "issued": 511}, 4),
        ((), {"samples": 231, "issued": 512}, 3),
        ((), {"samples": 234, "issued": 512}, 0),
        ((), {"samples": 300, "issued": 512}, 0),
        ((), {"samples": 234, "issued": 512, "free": True}, 4),
        # before that no more than the steps to come will pay for, which are taken by whole calls
        ((), {"samples": 297}, 1),
        ((), {"samples": 298}, 0),
        ((), {"samples": 298, "free": True}, 4),
        ((), {"samples": 239, "issued": 511}, 3),
        # unless workers wait for the trainers: then nobody would go on
        ((), {"landed": 1002, "samples": 234, "issued": 511, "rows": 1, "band": 1.25, "call_updates": 1}, 1),
    ],
)
def test_updates_of_one_more_train_call(overrides, given, updates):
    assert make(*overrides, **given).updates() == updates


@pytest.mark.parametrize(
    ("overrides", "given", "may"),
    [
        ((), {}, True),
        ((), {"issued": 511}, True),
        ((), {"issued": 512}, False),
        ((), {"publishing": True}, True),
        (PPO, {}, True),
        (PPO, {"publishing": True}, False),
        (("worker.random_steps=64",), {"params": None, "issued": 63}, True),
        (("worker.random_steps=64",), {"params": None, "issued": 64}, False),
        ((), {"band": 20.0, "samples": 232}, True),  # 8 more are paid for by 32 rows
        ((), {"band": 20.0, "samples": 231}, False),
    ],
)
def test_whether_one_more_collect_may_start(overrides, given, may):
    assert make(*overrides, **given).may_collect() == may


@pytest.mark.parametrize(
    ("given", "over"),
    [
        ({}, True),
        ({"env_steps": 511}, False),
        ({"env_steps": 600}, True),
        ({"training": 1}, False),
        ({"pool": SimpleNamespace(busy={"a": 1})}, False),
        ({"arrived": ["a block"]}, False),
        ({"samples": 233}, False),
        ({"samples": 233, "free": True}, True),
        ({"samples": 240}, True),
    ],
)
def test_a_run_is_over_when_its_steps_are_taken_and_paid_for(given, over):
    assert make(**{"env_steps": 512, "samples": 234, **given}).is_over() == over
