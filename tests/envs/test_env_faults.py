import re
import signal
import threading
import time
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.faults import TICKS, CallWatch, Hung, hang_limit
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.types import Episode

COUNTER, FAULTY = "drl_cli.envs.probes:Counter-v0", "drl_cli.envs.probes:Faulty-v0"
MESSAGES = {
    "raise": "step raised RuntimeError: probe crashed at step 5", "nan_obs": "observation[0] is nan",
    "inf_reward": "reward is inf", "shape": "observation has shape (4,), expected (3,)",
    "hang": "hung for more than 0.2 s (worker.step_timeout_s)",
    "reset": "reset raised RuntimeError: probe crashed at reset after step 7",
}  # fmt: skip


class Odd(gymnasium.Env):
    """Calls `act(self, method)` in each method. Observations are [number of the instance, step of the episode]."""

    observation_space, action_space = Box(-9, 99, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    lives = 0

    def __init__(self, act):
        Odd.lives += 1
        self.act, self.life, self.count = act, Odd.lives, 0
        self.act(self, "init")

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.obs() if (changed := self.act(self, "reset")) is None else changed, {}

    def step(self, action):
        self.count += 1
        obs, reward = (None, None) if (changed := self.act(self, "step")) is None else changed
        return self.obs() if obs is None else obs, 1.0 if reward is None else reward, False, self.count == 4, {}

    def close(self):
        self.act(self, "close")

    def obs(self):
        return np.array([self.life, self.count], np.float32)


gymnasium.register("TestOdd-v0", Odd)


def odd(act, max_rebuilds=2, seeds=(1, 2)):
    """Make a batch of Odds."""
    config = EnvConfig("test", "TestOdd-v0", {"act": lambda env, method: None}, None, 1.0, "none", False, False)
    spec = read_spec(config)
    Odd.lives = 0
    return EnvBatch(replace(config, kwargs={"act": act}), spec, seeds, max_rebuilds)


def run(id, num_steps, **kwargs):
    """Return a batch of three environments, and (observations before the step, step) for each step."""
    config = EnvConfig("test", id, kwargs, None, 1.0, "none", False, False)
    envs, actions = EnvBatch(config, read_spec(config), (1, 2, 3), 10), np.zeros((3, 1), np.float32)
    with hang_limit(0.2, envs.calls):
        return envs, [(envs.obs.copy(), envs.step(actions)) for _ in range(num_steps)]


@pytest.mark.parametrize("fault", MESSAGES)
def test_one_environment_is_rebuilt_and_the_rest_continue(tmp_path, alarms, fault):
    envs, steps = run(FAULTY, 12, fault=fault, at=5, file=str(tmp_path / "once"))
    expected_envs, expected = run(COUNTER, 12)
    for (obs, step), (expected_obs, expected_step) in zip(steps, expected, strict=True):
        np.testing.assert_array_equal(obs[1:], expected_obs[1:])
        for name, column in vars(step).items():
            np.testing.assert_array_equal(column[1:], vars(expected_step)[name][1:])
    valid = [bool(step.valid[0]) for _, step in steps]
    assert valid == [fault == "reset" or i != 4 for i in range(12)]
    first = 5 if fault != "reset" else 7
    tags = [int(obs[0, 0]) for obs, _ in steps]
    assert (tags[:first], len(set(tags[first:]))) == ([1] * first, 1)
    assert tags[-1] not in (1, 2, 3)  # a new seed
    assert steps[first][0][0, 1:].tolist() == [0, 0]  # which begins with its first episode
    failed = steps[first - 1][1]
    if fault != "reset":
        assert (failed.reward[0], failed.terminated[0], failed.truncated[0]) == (0, False, False)
        np.testing.assert_array_equal(failed.next_obs[0], steps[first - 1][0][0])
    taken, faults = envs.take_news()
    assert faults == (f"env 0: {MESSAGES[fault]}; environment rebuilt 1/10 (worker.max_restarts)",)
    assert envs.take_news() == ((), ())
    others = [episode for episode in expected_envs.take_news()[0] if episode.env]
    mine = [Episode(0, 6.0, 3), *([Episode(0, 10.0, 4)] if fault == "reset" else []), Episode(0, 6.0, 3)]
    assert [episode for episode in taken if episode.env] == others
    assert [episode for episode in taken if not episode.env][: len(mine)] == mine


def test_new_seeds_are_reproducible_and_differ(tmp_path):
    def tags(seeds):
        config = EnvConfig("test", FAULTY, {"at": 2}, None, 1.0, "none", False, False)
        envs = EnvBatch(config, read_spec(config), seeds, 20)
        return [[envs.step(np.zeros((2, 1), np.float32)), envs.obs[:, 0].tolist()][1] for _ in range(12)]

    first = tags((1, 2))
    assert len({tag for pair in first for tag in pair}) == 14  # each was rebuilt six times
    assert first == tags((1, 2))
    assert not {tag for pair in first for tag in pair} & {tag for pair in tags((3, 4)) for tag in pair}


def test_rebuilds_are_counted_over_all_environments():
    def act(env, method):
        if method == "step" and env.count == 2:
            raise (KeyError("a") if env.life == 2 else ValueError("two\nlines"))

    envs = odd(act)
    envs.step(np.zeros((2, 1), np.float32))
    envs.step(np.zeros((2, 1), np.float32))
    place = rf"\(\S*test_env_faults\.py:{act.__code__.co_firstlineno + 2}\)"
    assert [re.sub(place, "PLACE", fault) for fault in envs.take_news()[1]] == [
        "env 0: step raised ValueError: two lines PLACE; environment rebuilt 1/2 (worker.max_restarts)",
        "env 1: step raised KeyError: 'a' PLACE; environment rebuilt 2/2 (worker.max_restarts)",
    ]
    envs.step(np.zeros((2, 1), np.float32))
    with pytest.raises(EnvFault, match=(
        rf"^env 0: step raised ValueError: two lines {place}; no rebuild is left \(worker\.max_restarts=2\)"
    )) as caught:  # fmt: skip
        envs.step(np.zeros((2, 1), np.float32))
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_error_names_the_last_and_the_first_fault():
    message = (
        "env 0: reward is inf; no rebuild is left (worker.max_restarts=1); the first fault was in env 0: reward is nan"
    )
    envs = odd(lambda env, method: (None, {1: np.nan, 3: np.inf}.get(env.life)) if method == "step" else None, 1)
    envs.step(np.zeros((2, 1), np.float32))
    with pytest.raises(EnvFault, match=re.escape(message)):
        envs.step(np.zeros((2, 1), np.float32))


def test_a_failed_rebuild_is_raised():
    def act(env, method):
        if method == "init" and env.life == 3:
            raise OSError("no licence")
        if method == "step" and env.count == 2:
            raise ValueError("bad")

    envs = odd(act)
    envs.step(np.zeros((2, 1), np.float32))
    with pytest.raises(EnvFault, match="env 0: can't be rebuilt: its constructor raised OSError: no licence"):
        envs.step(np.zeros((2, 1), np.float32))


def test_failed_resets_use_rebuilds():
    bad = {1: np.array([np.nan, 0], np.float32), 3: np.zeros((1, 2), np.float32)}
    envs = odd(lambda env, method: bad.get(env.life) if method == "reset" else None)
    assert envs.obs.tolist() == [[4, 0], [2, 0]]
    assert envs.take_news()[1] == (
        "env 0: observation[0] is nan; environment rebuilt 1/2 (worker.max_restarts)",
        "env 0: observation has shape (1, 2), expected (2,); environment rebuilt 2/2 (worker.max_restarts)",
    )


def test_a_fault_of_all_environments_at_the_first_step_is_raised():
    def act(env, method):
        if method == "step":
            raise ValueError("no arm")

    envs = odd(act)
    message = r"env 0: step raised ValueError: no arm \(\S+\), as in all environments at their first step"
    with pytest.raises(EnvFault, match=message) as caught:
        envs.step(np.zeros((2, 1), np.float32))
    assert isinstance(caught.value.__cause__, ValueError)
    assert (Odd.lives, envs.take_news()[1]) == (2, ())


@pytest.mark.parametrize("method", ["reset", "step"])
def test_three_equal_early_faults_are_raised(method):
    def act(env, called):
        if called == method:
            raise ValueError("no arm")

    def run():
        envs = odd(act, 9, (1,))
        for _ in range(3):
            envs.step(np.zeros((1, 1), np.float32))

    with pytest.raises(
        EnvFault, match=rf"env 0: {method} raised ValueError: no arm \(.+\), each of the 3 times it was"
    ):
        run()
    assert Odd.lives == 3


def test_a_close_that_raises_is_ignored():
    def act(env, method):
        if method == "close" or (method == "step" and env.life == 1):
            raise ValueError(method)

    envs = odd(act)
    assert envs.step(np.zeros((2, 1), np.float32)).valid.tolist() == [False, True]
    assert envs.obs.tolist() == [[3, 0], [2, 1]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((["a", "b"], None), "step raised ValueError: could not convert"),
        ((np.zeros(1, np.float32), None), r"observation has shape \(1,\), expected \(2,\)"),
        ((np.zeros((1, 2), np.float32), None), r"observation has shape \(1, 2\), expected \(2,\)"),
        ((5.0, None), r"observation has shape \(\), expected \(2,\)"),
        (([1.0, -np.inf], None), r"observation\[1\] is -inf"),
        ((None, "much"), "step raised ValueError: could not convert"),
        ((None, 1e300), "reward is inf"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_wrong_observations_and_rewards(given, message):
    envs = odd(lambda env, method: given if method == "step" and env.life == 1 else None)
    assert envs.step(np.zeros((2, 1), np.float32)).valid.tolist() == [False, True]
    (fault,) = envs.take_news()[1]
    assert re.match("env 0: " + message, fault)


def test_an_action_that_is_not_finite_is_named():
    def act(env, method):
        if method == "step" and env.life == 1:
            raise ValueError("bad action")

    envs = odd(act)
    envs.step(np.array([[np.nan], [0]], np.float32))
    assert envs.take_news()[1][0].startswith("env 0: the policy's action is not finite; ")


def test_interrupts_are_raised():
    def act(env, method):
        if method == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        odd(act).step(np.zeros((2, 1), np.float32))


def test_begun_lists_environments_that_began_an_episode():
    def act(env, method):
        if method == "step" and env.life == 2 and env.count == 2:
            raise ValueError

    envs, begun = odd(act), []
    for _ in range(6):
        envs.step(np.zeros((2, 1), np.float32))
        begun.append(envs.begun)
        assert all(envs.obs[i, 1] == 0 for i in envs.begun)
    assert begun == [[], [1], [], [0], [], [1]]


def test_only_a_long_call_hangs(alarms):
    """Only one long call hangs, not time outside of calls or many short calls; also after a first Hung was caught."""
    calls = CallWatch()
    with hang_limit(0.08, calls):
        alarms(3 * TICKS)
        for _ in range(2 * TICKS):
            with calls:
                alarms(1)
        for _ in range(2):
            with calls:
                alarms(TICKS)
                with pytest.raises(Hung, match=r"hung for more than 0.08 s \(worker.step_timeout_s\)"):
                    alarms(1)


def test_the_timer_finds_a_call_that_does_not_end():
    calls = CallWatch()
    with hang_limit(0.02, calls), pytest.raises(Hung), calls:
        time.sleep(60)


def test_the_signal_and_its_timer_are_restored():
    def mine(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGALRM, mine)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 40.0, 7.0)
    try:
        with hang_limit(10.0, CallWatch()):
            assert signal.getsignal(signal.SIGALRM) is not mine
        assert signal.getsignal(signal.SIGALRM) is mine
        again, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 30 < again <= 40
        assert interval == 7.0
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


def test_other_threads_have_no_limit():
    seen = []

    def enter():
        with hang_limit(10.0, CallWatch()):
            seen.append(signal.getsignal(signal.SIGALRM))

    before, thread = signal.getsignal(signal.SIGALRM), threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_observations_may_be_lists():
    envs = odd(lambda env, method: ([7.0, 8.0], None) if method == "step" else None)
    assert envs.step(np.zeros((2, 1), np.float32)).next_obs.tolist() == [[7, 8], [7, 8]]
    assert envs.take_news()[1] == ()


def test_environments_that_all_fail_after_a_step_are_rebuilt():
    steps = []

    def act(env, method):
        if method == "step":
            steps.append(env.life)
            if env.life == 1 or len(steps) > 2:
                raise ValueError("no arm")

    envs = odd(act, 3)
    for _ in range(2):  # in the second step both fail
        envs.step(np.zeros((2, 1), np.float32))
    assert len(envs.take_news()[1]) == 3
