"""Pace: which call may be made next."""

from types import SimpleNamespace

import pytest
from graphs import TINY, make_config

from drl_cli.runtime.orchestrator.pace import Pace
from drl_cli.runtime.orchestrator.rate_limiter import RateLimiter


def make(*overrides, issued=0, env_steps=0):
    """A pace after so many environment steps, of which `issued` are under way or done."""
    config = make_config(*TINY, *overrides)
    hand_over = SimpleNamespace(issued=issued, rows=32, arrived=[], pool=SimpleNamespace(busy={}))
    learning = SimpleNamespace(training=0, publishing=False, params=object(), call_updates=4)
    return Pace(config, RateLimiter(0.25, 64, 1e9), SimpleNamespace(env_steps=env_steps), hand_over, learning)


@pytest.mark.parametrize(("issued", "env_steps", "is_random"), [(96, 96, True), (127, 0, True), (128, 0, False)])
def test_random_steps_are_those_that_were_issued_first(issued, env_steps, is_random):
    """Counted by what has landed they would be more, by all that was under way then."""
    assert make("worker.random_steps=128", issued=issued, env_steps=env_steps).is_random() == is_random


@pytest.mark.parametrize(("issued", "may_collect"), [(511, True), (512, False)])
def test_no_more_steps_are_issued_than_the_run_has(issued, may_collect):
    assert make("total_env_steps=512", issued=issued).may_collect() == may_collect
