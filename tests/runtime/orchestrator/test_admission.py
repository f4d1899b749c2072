import random
from types import SimpleNamespace

import pytest
from graphs import TINY, make_config
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drl_cli.runtime.orchestrator.admission import Admission
from drl_cli.runtime.orchestrator.rate_limiter import QueueLimiter, RateLimiter, required_band
from drl_cli.utils.run_clock import RunClock

ONE_ROW = ("worker.envs=1", "worker.block_rows=1")
PPO = ("algo=ppo", "algo.minibatch_size=8")


FREE = SimpleNamespace(may_collect=lambda rows: True)
"""The re-analysis of a run without re-analysers."""


def make(*overrides, landed=1000, samples=0, free=False, band=1e9, env_steps=0, inserts=None, **changes):
    """The admission of a run of 512 steps, in its middle; `changes` are attributes of its collector or learning."""
    config = make_config(*TINY, "mode=async", *overrides)
    collector = SimpleNamespace(issued=256, uncertain=0, arrived=[], pool=SimpleNamespace(busy={}))
    learning = SimpleNamespace(training=0, publishing=False, params=object(), call_updates=4)
    for name, value in changes.items():
        setattr(collector if hasattr(collector, name) else learning, name, value)
    limiter = RateLimiter(0.25, 64, band, free, inserts or landed, landed, samples)
    return Admission(config, limiter, SimpleNamespace(env_steps=env_steps), collector, learning, FREE)


@pytest.mark.parametrize(
    ("overrides", "state", "updates"),
    [
        ((), {}, 4),
        ((), {"training": 1}, 4),  # replay draws the next batch during an update
        *[((), {"training": 2}, 0), (PPO, {}, 4), (PPO, {"training": 1}, 0), ((), {"landed": 63}, 0)],
        ((), {"band": 0.0, "samples": 231}, 0),
        # 234 updates are due: once all steps are issued, no more are made
        *[((), {"samples": 231, "issued": 511}, 4), ((), {"samples": 231, "issued": 512}, 3)],
        *[((), {"samples": 234, "issued": 512}, 0), ((), {"samples": 300, "issued": 512}, 0)],
        ((), {"samples": 234, "issued": 512, "free": True}, 4),
        # before that, at most the updates due at the end of the run, whose steps come in whole calls
        *[((), {"samples": 297}, 1), ((), {"samples": 298}, 0), ((), {"samples": 298, "free": True}, 4)],
        ((), {"samples": 239, "issued": 511}, 3),
        # a proxy's call in flight may return the steps of one worker
        ((), {"samples": 230, "issued": 512, "uncertain": 32}, 4),
        ((), {"samples": 231, "issued": 576, "uncertain": 64}, 0),
        ((), {"samples": 216, "issued": 576, "uncertain": 64}, 2),
    ],
)
def test_updates_of_the_next_train_call(overrides, state, updates):
    assert make(*overrides, **state).updates() == updates


@pytest.mark.parametrize(
    ("overrides", "state", "may"),
    [
        *[((), {}, True), ((), {"issued": 511}, True), ((), {"issued": 512}, False)],
        *[((), {"publishing": True}, True), (PPO, {}, True), (PPO, {"publishing": True}, False)],
        (("worker.random_steps=64",), {"params": None, "issued": 63}, True),
        (("worker.random_steps=64",), {"params": None, "issued": 64}, False),
        ((), {"band": 20.0, "samples": 232}, True),  # 32 rows make 8 more updates due
        ((), {"band": 20.0, "samples": 231}, False),
        # all updates of the run are made, and a narrow band would stop the workers
        (ONE_ROW, {"landed": 1002, "samples": 234, "issued": 511, "band": 1.25}, True),
        (ONE_ROW, {"landed": 1002, "samples": 234, "issued": 508, "band": 1.25}, False),
        (ONE_ROW, {"landed": 63, "inserts": 1002, "issued": 511, "band": 1.25}, False),
    ],
)
def test_whether_one_more_collect_may_start(overrides, state, may):
    assert make(*overrides, **state).may_collect(1 if overrides == ONE_ROW else 32) == may


@pytest.mark.parametrize(
    ("state", "over"),
    [
        *[({}, True), ({"env_steps": 511}, False), ({"env_steps": 600}, True), ({"training": 1}, False)],
        *[({"pool": SimpleNamespace(busy={"a": 1})}, False), ({"arrived": ["a block"]}, False)],
        *[({"samples": 233}, False), ({"samples": 233, "free": True}, True), ({"samples": 240}, True)],
    ],
)
def test_a_run_is_over_after_its_steps_and_their_updates(state, over):
    assert make(**{"env_steps": 512, "samples": 234, **state}).is_over() == over


def play(limiter, total, rows, batches, workers, death, seed, share=1):
    """Simulate a run with calls that end in random order; return its environment steps, fail at a deadlock.

    A collect call returns `rows` rows of some of `share` workers, or is lost with probability `death`.
    """
    rng = random.Random(seed)
    is_on_policy, asked = isinstance(limiter, QueueLimiter), rows * share
    config = SimpleNamespace(
        is_on_policy=is_on_policy, total_env_steps=total, clock=RunClock(total=total), rows_per_collect=rows
    )
    collector = SimpleNamespace(issued=0, uncertain=0, arrived=[], pool=SimpleNamespace(busy=[]))
    learning = SimpleNamespace(training=0, publishing=False, params=object(), call_updates=batches)
    admission = Admission(config, limiter, SimpleNamespace(env_steps=0), collector, learning, FREE)
    busy, calls = collector.pool.busy, []
    while not admission.is_over():
        while updates := admission.updates():
            limiter.issue_sample(updates)
            learning.training += 1
            calls.append(updates)
        while len(busy) < workers and admission.may_collect(asked):
            limiter.issue_collect(asked)
            collector.issued += asked
            collector.uncertain += asked - rows
            busy.append(asked)
        assert calls or busy, f"nobody may go on: {limiter}"
        if rng.random() * (len(calls) + len(busy)) < len(busy):
            busy.pop()
            collector.uncertain -= asked - rows
            landed = 0 if rng.random() < death else rows * rng.randint(1, share)
            limiter.land(asked, landed)
            collector.issued += landed - asked
            admission.progress.env_steps += landed
        else:
            calls.pop()
            learning.training -= 1
    return admission.progress.env_steps


@example(ratio=0.1, min_inserts=0, total=200, rows=16, batches=3, excess=0.0, workers=1, death=0.0, seed=0, share=1)
@settings(deadline=None, max_examples=120)
@given(
    ratio=st.one_of(st.sampled_from([0.02, 0.1, 0.25, 1.0]), st.floats(0.01, 4)),
    min_inserts=st.integers(0, 200),
    total=st.integers(200, 700),
    rows=st.integers(1, 40),
    batches=st.integers(1, 16),
    excess=st.one_of(st.just(0.0), st.floats(0, 50)),
    workers=st.integers(1, 5),
    death=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**32 - 1),
    share=st.integers(1, 4),
)
def test_a_run_ends_with_all_updates_due(ratio, min_inserts, total, rows, batches, excess, workers, death, seed, share):
    limiter = RateLimiter(ratio, min_inserts, required_band(ratio, rows * share, batches) + excess)
    env_steps = play(limiter, total, rows, batches, workers, death, seed, share)
    assert total <= env_steps == limiter.landed < total + rows * share
    paid = ratio * (env_steps - min_inserts)
    assert paid - 1 < limiter.samples <= paid + 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_an_on_policy_run_ends_without_a_full_batch_left(seed):
    limiter = QueueLimiter(batch_size=64, ahead=1)
    assert play(limiter, 500, 24, 1, 3, 0.2, seed) in range(500, 524)
    assert limiter.queued < 64
