import random
import re

import gymnasium
import numpy as np
import pytest
from graphs import COUNTER, DISCOUNT, TINY, make_config
from gymnasium.spaces import Box

from drl_cli.envs.make import read_spec
from drl_cli.errors import EnvironmentFailed
from drl_cli.run_folder.checkpoint import read_arrays, write_arrays
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams

FAULTY = "env=drl_cli.envs.probes:Faulty-v0"
FRAMES = ("env=drl_cli.envs.probes:Frames-v0", "+env.kwargs.size=12", "replay.compress=lz4")
SEQUENCES = ("replay=sequences", "replay.seq_len=4", "replay.burn_in=3", "replay.overlap=1")


class Forgetful(gymnasium.Env):
    """An environment with a hidden random generator."""

    def __init__(self, raises=False):
        self.observation_space, self.action_space = Box(0, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32)
        self.draw = np.random.default_rng().random
        self.raises, self.count = raises, 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.draw(1).astype(np.float32), {}

    def step(self, action):
        self.count += 1
        if self.raises and Forgetful.forbidden:
            raise ValueError("not again")
        return self.draw(1).astype(np.float32), 1.0, False, self.count == 50, {}


Forgetful.forbidden = False
gymnasium.register("TestForgetful-v0", Forgetful)


def make_worker(*overrides, index=0, incarnation=0):
    config = make_config(
        *TINY, DISCOUNT, "worker.num=2", "worker.envs=3", "worker.block_rows=30", "network.hidden=[8]", *overrides
    )
    return Worker(config, read_spec(config.env), index, incarnation)


def vector(worker, seed):
    """Return random parameters of the policy's size."""
    config = worker.config
    params = make_trainer(config, read_spec(config.env), "cpu", 0).publish(0, 0)[1]
    return np.random.default_rng(seed).normal(0, 0.3, params.shape).astype(np.float32)


def collect(worker, version, params=None):
    params_header = LoadParams(version, 7 * version, 90 * version, exploration={"epsilon": 0.3})
    header, columns = worker.collect(params_header, params)
    return (header.blocks, header.episodes, header.faults), columns


def test_a_running_collect_tells_its_steps():
    worker, told = make_worker(COUNTER), []
    random = worker.policy.random
    worker.policy.random = lambda obs, last: [told.extend(worker.told_steps()), random(obs, last)][1]
    for first in (0, 30):
        told.clear()
        worker.collect(LoadParams(-1, 0, 0, random_actions=True))
        assert told == [(0, first, 3 * i) for i in range(10)]
        assert worker.told_steps() == [(0, first + 30, 0)]


def through_a_file(state, folder):
    sums = {"state": write_arrays(folder / "state", state)}
    return read_arrays(folder, "state", {"sha256": sums})


def check_equal(ours, theirs):
    assert ours[0] == theirs[0]
    assert ours[1].keys() == theirs[1].keys()
    for name, column in ours[1].items():
        assert column.dtype == theirs[1][name].dtype
        assert column.tobytes() == theirs[1][name].tobytes(), name


@pytest.mark.parametrize("num_blocks", [pytest.param(1, marks=pytest.mark.exhaustive), 7])
@pytest.mark.parametrize(
    "overrides",
    [
        *[("env=LunarLanderContinuous", "algo.n_step=5"), ("env=LunarLanderContinuous", "algo=ppo")],
        *[("env=Pendulum-v1",), ("env=Pendulum-v1", *SEQUENCES), ("env=CartPole-v1", "algo=dqn", "algo.n_step=5")],
        ("env=CartPole-v1", "algo=dqn", "replay=prioritized", "replay.initial_priority=worker"),
        ("env=CartPole-v1", "algo=ppo"),
        (COUNTER, "algo.n_step=5"),
        (COUNTER, "network=lstm", "algo=ppo", "network.memory_size=6"),
        ("env=CartPole-v1", "algo=dqn", "network=lstm", "network.memory_size=6", *SEQUENCES),
        (COUNTER, *SEQUENCES),
        (FAULTY, "+env.kwargs.at=13", "worker.max_restarts=100", "algo.n_step=5"),
        (FAULTY, "+env.kwargs.at=null", "worker.max_restarts=100"),
        (*FRAMES, "algo=dqn", "algo.n_step=5"),
        (*FRAMES, "algo=dqn", "algo.n_step=5", "worker.block_rows=3"),
        (*FRAMES, "algo=dqn", *SEQUENCES),
    ],
    ids=lambda overrides: "-".join(name.split(":")[-1].split("=")[-1] for name in overrides[:3]),
)
def test_another_worker_continues_bit_for_bit(tmp_path, overrides, num_blocks):
    """The state may lie in the middle of episodes or after a fault, and may be saved twice."""
    first = make_worker(*overrides, incarnation=2)
    for block in range(num_blocks):
        collect(first, block, vector(first, block) if block % 3 == 0 else None)
    second = make_worker(*overrides)
    second.load_state(through_a_file(first.state(), tmp_path))
    for version in range(3):
        check_equal(collect(first, 50 + version), collect(second, 50 + version))
    third = make_worker(*overrides)
    third.load_state(through_a_file(second.state(), tmp_path))
    params = vector(first, 99)
    for version in range(8):
        check_equal(collect(first, 60 + version, params), collect(third, 60 + version, params))
    assert (first.incarnation, third.incarnation) == (2, 2)


def test_a_state_does_not_change_later():
    """A state may be written to disk while the worker continues."""
    worker = make_worker(*FRAMES, "algo=dqn", "algo.n_step=5")
    collect(worker, 0, vector(worker, 0))
    state = worker.state()
    kept = {name: array.copy() for name, array in state.items()}
    for version in range(3):
        collect(worker, version, vector(worker, version))
    for name, array in kept.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


def test_global_generators_are_restored(tmp_path):
    worker = make_worker(COUNTER)
    random.gauss(0, 1), np.random.standard_normal()  # each keeps a second one back
    collect(worker, 0, vector(worker, 0))
    state, again = worker.state(), make_worker(COUNTER)
    worker.load_state(state)
    expected = [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.random()]
    random.seed(5), np.random.seed(5)
    again.load_state(through_a_file(state, tmp_path))
    assert [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.random()] == expected


def test_global_generators_are_seeded_by_the_run():
    def draw(*overrides):
        make_worker(COUNTER, *overrides)
        return random.random(), np.random.random()

    assert draw("seed=3") == draw("seed=3") != draw("seed=4")


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [((), "its repeat differs"), (("+env.kwargs.raises=true",), "repeating it raised ValueError: not again PLACE")],
)
def test_an_episode_that_can_not_be_restored_starts_again(tmp_path, caplog, monkeypatch, kwargs, why):
    """Each environment misses one step, open rows end, and the fault budget stays."""
    overrides = ("env=TestForgetful-v0", *kwargs, "algo.n_step=5", "worker.max_restarts=0")
    first, second = make_worker(*overrides), make_worker(*overrides, index=1)
    (blocks, _, _), _ = collect(first, 0, vector(first, 0))
    Forgetful.forbidden = True
    second.load_state(through_a_file(first.state(), tmp_path))
    Forgetful.forbidden = False
    lines = [f"worker 1 env {i}: can't continue its episode ({why}); it begins another" for i in range(3)]
    messages = [record.getMessage() for record in caplog.records]
    assert [re.sub(r"\(\S*test_worker_state\.py:\d+\)", "PLACE", message) for message in messages] == lines
    assert second.builder.open_rows == first.builder.open_rows == 12
    begun, act = [], second.policy.act
    see = lambda obs, last: [act(obs, last), begun.append(np.flatnonzero(last.begins).tolist())][0]  # noqa: E731
    second.policy.act = see
    (after, _, faults), more = collect(second, 1)
    assert faults == ()
    assert begun[:2] == [[], [0, 1, 2]]  # the first step is missing
    assert not any(begun[2:])
    assert after[0].first_env_step == blocks[0].last_env_step == 30
    assert after[0].last_env_step == 57
    assert after[0].rows == len(more["reward"]) == 12 + 27 - 12
    assert more["truncated"].tolist() == [True] * 12 + [False] * 15
    assert more["reward"][:12].reshape(4, 3)[:, 0] == pytest.approx(
        [sum(0.99**j for j in range(n)) for n in (4, 3, 2, 1)]
    )
    ends = more["next_obs"][:12].reshape(4, 3)
    assert (ends == ends[0]).all()


def test_an_environments_used_generator_is_restored(tmp_path):
    first, second = (make_worker("env=CartPole-v1", "algo=dqn") for _ in range(2))
    collect(first, 0, vector(first, 0))
    first.envs.envs[1].raw.unwrapped.np_random.random()
    second.load_state(through_a_file(first.state(), tmp_path))
    for version in range(5):
        check_equal(collect(first, version), collect(second, version))


def test_the_fault_budget_is_restored(tmp_path):
    args = (FAULTY, "+env.kwargs.at=7", "worker.max_restarts=5")
    first, second = make_worker(*args), make_worker(*args)
    assert len(collect(first, 0, vector(first, 0))[0][2]) == 3
    second.load_state(through_a_file(first.state(), tmp_path))
    messages = []
    for worker in (first, second):
        with pytest.raises(EnvironmentFailed, match="the first fault was in env 0") as caught:
            collect(worker, 1)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_very_long_episodes_start_again(caplog, monkeypatch):
    monkeypatch.setattr("drl_cli.envs.stepping.batch.MAX_STEPS", 25)
    args = ("env=Pendulum-v1", "worker.envs=1", "worker.block_rows=10")
    first = make_worker(*args)
    for block in range(3):
        collect(first, block, vector(first, 0))
        second = make_worker(*args)
        second.load_state(first.state())
        assert len(caplog.records) == (block == 2)
    assert "more than 25 steps" in caplog.text
    assert collect(second, 9)[0][0][0].last_env_step == 39


def test_another_number_of_environments_is_refused():
    worker = make_worker(COUNTER)
    collect(worker, 0, vector(worker, 0))
    with pytest.raises(ValueError, match=r"the saved worker has 3 environments, this one has 4 \(worker.envs\)"):
        make_worker(COUNTER, "worker.envs=4", "worker.block_rows=40").load_state(worker.state())


def test_only_the_actions_of_running_episodes_are_kept():
    worker = make_worker(COUNTER)
    for block in range(9):
        collect(worker, block, vector(worker, 0))
        assert len(worker.envs._actions) == max(worker.envs._lengths) <= 7
