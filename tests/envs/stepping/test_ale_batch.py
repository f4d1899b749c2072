"""AleBatch plays the same episodes as `Atari`, byte by byte, with one vector environment of ale-py."""

import re
from functools import cache

import numpy as np
import pytest
from graphs import TINY, make_config

from drl_cli.envs import atari
from drl_cli.envs.config import EnvConfig, EnvError, EnvFault, MissingExtra
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams

pytest.importorskip("ale_py", minversion="0.12.1", reason="needs the extra atari:  pip install 'drl-cli[atari]'")

from drl_cli.envs.stepping.ale_batch import AleBatch

COLUMNS = ("next_obs", "reward", "terminated", "truncated", "valid")


def config(game="Breakout", max_episode_steps=None, **kwargs):
    return EnvConfig(game, f"ALE/{game}-v5", kwargs, max_episode_steps, 1.0, "auto", False, False, "ale")


@cache
def spec_of(game):
    """Read each game's specification once, because consoles take long to start. Limits of episodes do not change it."""
    return read_spec(config(game))


class Forced:
    """A random generator that returns the given numbers of no-op frames."""

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def integers(self, low, high):
        assert low <= self.numbers[0] < high
        return self.numbers.pop(0)


def both(made, size=2, spec=None):
    spec = spec or spec_of(made.name)
    consoles = {seed: int(np.int32(np.random.SeedSequence(seed).generate_state(2)[1])) for seed in range(40)}
    seeds = [seed for seed, console in consoles.items() if console >= 0][:size]  # ale-py takes no negative seeds
    return AleBatch(made, spec, [consoles[seed] for seed in seeds]), EnvBatch(made, spec, seeds)


def play_equally(batch, single, steps):
    """Take random steps in both, assert that all results are equal, and return the steps."""
    rng, played = np.random.default_rng(0), []
    np.testing.assert_array_equal(batch.obs, single.obs)
    for _ in range(steps):
        actions = rng.integers(single.spec.action.size, size=len(batch.seeds))
        before = batch.obs.copy()
        one, other = batch.step(actions), single.step(actions)
        for name in COLUMNS:
            value, expected = getattr(one, name), getattr(other, name)
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(value, expected, err_msg=name)
        assert sorted(batch.begun) == sorted(single.begun)
        np.testing.assert_array_equal(batch.obs, single.obs)
        played.append((before, one))
    ours, theirs = batch.take_news()[0], single.take_news()[0]
    assert [(e.env, e.ret, e.length) for e in ours] == [(e.env, e.ret, e.length) for e in theirs]
    return played, ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "steps", "num_episodes", "lives"),
    [
        (config(protocol="machado"), 250, 2, 0),
        pytest.param(config(noop_max=0), 250, 2, 8, marks=pytest.mark.exhaustive),
        (config("Seaquest", noop_max=0, sticky=0.1, full_action_set=True, stack=3, frameskip=5), 200, 0, 2),
        pytest.param(
            config("Seaquest", noop_max=0, episodic_life=False, stack=1, frameskip=9),
            *(250, 1, 0),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(config("Pong", noop_max=0, max_frames=400), 220, 4, 0, marks=pytest.mark.exhaustive),
        (config(noop_max=0, max_frames=120), 70, 4, 1),
        pytest.param(config("Breakout", 17, noop_max=0), 60, 6, 0, marks=pytest.mark.exhaustive),
        (config("Pong", 25, noop_max=0, max_frames=60), 35, 4, 0),
    ],
)
def test_transitions_equal_those_of_single_environments(made, steps, num_episodes, lives):
    played, episodes = play_equally(*both(made, spec=read_spec(made)), steps)
    assert len(episodes) >= num_episodes
    ends = sum(int((step.terminated | step.truncated).sum()) for _, step in played)
    lost = ends - len(episodes)
    assert lost >= lives > 0 or lost == lives == 0


@pytest.mark.slow
def test_truncation_at_the_loss_of_a_life_keeps_both_marks():
    """A step that loses a life and is the last one of `max_episode_steps` is terminated and truncated."""
    made = config(noop_max=0)
    played, _ = play_equally(*both(made, 1), 40)
    (first, *_) = [t for t, (_, step) in enumerate(played) if step.terminated[0]]
    short = config("Breakout", first + 1, noop_max=0)
    played, _ = play_equally(*both(short, 1), first + 1)
    assert (bool(played[-1][1].terminated[0]), bool(played[-1][1].truncated[0])) == (True, True)


@pytest.mark.slow
def test_episodes_begin_with_1_to_noop_max_noop_frames():
    """The vector environment also begins episodes without no-op frames. AleBatch repeats the reset of such episodes."""
    batch, begun, kept = AleBatch(config(noop_max=2), spec_of("Breakout"), [1, 2, 3, 4]), [], []
    reset = batch.pool.reset

    def recorded(**kwargs):
        obs, info = reset(**kwargs)
        begun.extend(info["episode_frame_number"][kwargs["options"]["reset_mask"]].tolist())
        return obs, info

    batch.pool.reset = recorded
    for _ in range(40):
        batch._reset(np.ones(4, np.bool_))
        _, info = reset(options={"reset_mask": np.zeros(4, np.bool_)})
        kept += info["episode_frame_number"].tolist()
    assert set(begun) == {0, 1, 2}
    assert set(kept) == {1, 2}
    assert 50 < kept.count(1) < 110


def test_the_number_of_noop_frames_is_the_only_other_random_choice():
    """With the no-op frames that the vector environment chose, `Atari` plays the same first episode."""
    made, spec = config(noop_max=30), spec_of("Breakout")
    for console in range(1, 60):  # a seed whose first reset has no-op frames, so that the console was not reset twice
        batch = AleBatch(made, spec, [console])
        _, info = batch.pool.reset(options={"reset_mask": np.zeros(1, np.bool_)})
        if info["frame_number"][0] == info["episode_frame_number"][0]:
            break
    single = EnvBatch(made, spec, [0])
    game = single.envs[0].raw.unwrapped
    game._ale.setInt("random_seed", console)
    game._ale.loadROM(game._rom)
    game._np_random = Forced([int(info["episode_frame_number"][0])])
    single._reset(0)
    play_equally(batch, single, 40)


def test_returned_arrays_do_not_change():
    batch, kept, rng = AleBatch(config("Pong", 5), spec_of("Pong"), [1, 2]), [], np.random.default_rng(0)
    for _ in range(12):
        obs = batch.obs
        step = batch.step(rng.integers(6, size=2))
        kept.append([(array, array.copy()) for array in (obs, *vars(step).values())])
    for arrays in kept:
        for array, copy in arrays:
            np.testing.assert_array_equal(array, copy)


@pytest.mark.slow
def test_a_resume_begins_episodes_with_new_seeds():
    made, spec = config("Pong"), spec_of("Pong")
    batch, plain = AleBatch(made, spec, [1, 2]), EnvBatch(made, spec, [1, 2])
    seen = [batch.obs]
    for each in (batch, plain):
        for _ in range(5):
            each.step(np.array([2, 3]))
    second = AleBatch(made, spec, [8, 9])
    for state in (batch.state(), plain.state()):  # also after env.backend=gymnasium
        assert second.load_state(state) == ["envs 0 to 1: ale-py can't continue episodes; they begin others"]
        assert second.seeds == [1, 2]
        step = second.step(np.array([0, 0]))
        assert not (step.valid | step.terminated | step.truncated).any()
        assert second.begun == [0, 1]
        assert not any(np.array_equal(second.obs, obs) for obs in seen)
        assert second.step(np.array([0, 0])).valid.all()
    third = EnvBatch(made, spec, [8, 9])  # and env.backend=gymnasium after env.backend=ale
    assert all("begins another" in line for line in third.load_state(batch.state()))
    assert third.step(np.array([0, 0])).valid.tolist() == [False, False]
    with pytest.raises(ValueError, match="the saved worker has 1 environments, this one has 2"):
        batch.load_state(batch.state() | {"seeds": np.array([1])})


def test_an_error_of_the_vector_environment_is_a_fault(monkeypatch):
    batch = AleBatch(config("Pong"), spec_of("Pong"), [1])

    def broken(actions):
        raise RuntimeError("the console is gone")

    monkeypatch.setattr(batch.pool, "step", broken)
    with pytest.raises(EnvFault, match=r"^ale-py's step raised RuntimeError: the console is gone$"):
        batch.step(np.array([0]))
    batch.close()


def test_only_a_loss_of_lives_during_a_game_counts(monkeypatch):
    """Some games have 0 lives for a while before they end. The lives of the next game count from its reset on."""
    batch = AleBatch(config(noop_max=0), spec_of("Breakout"), [1])
    lives, overs = [0, 0, 4, 4, 0, 4], [0, 0, 0, 0, 1, 0]
    step = batch.pool.step

    def told(actions):
        obs, reward, _, truncated, info = step(actions)
        return obs, reward, np.array([overs.pop(0) > 0]), truncated, {**info, "lives": np.array([lives.pop(0)])}

    monkeypatch.setattr(batch.pool, "step", told)
    marks = [bool(batch.step(np.array([0])).terminated[0]) for _ in range(6)]
    assert marks == [False, False, False, False, True, True]
    assert [episode.length for episode in batch.take_news()[0]] == [5]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "num_envs", "threads"), [("single", 2, 2), ("single", 4, 3), ("sync", 4, 1)])
def test_threads_of_a_worker(monkeypatch, mode, num_envs, threads):
    given, vector_env = {}, atari._vector_env()

    def made(game, size, **kwargs):
        given.update(kwargs, size=size)
        return vector_env(game, size, **kwargs)

    monkeypatch.setattr(atari, "_vector_env", lambda: made)
    monkeypatch.setattr("drl_cli.runtime.roles.worker.num_cores", lambda: 3)
    game = ("env=Pong", "algo=dqn", "env.backend=ale", "network.channels=0.125", "network.hidden=[8]")
    asked = make_config(*TINY, *game, f"mode={mode}", "worker.num=1", f"worker.envs={num_envs}", "worker.block_rows=40")
    worker = Worker(asked, spec_of("Pong"), 0, 0)
    assert (given["size"], given["num_threads"], worker.envs.num_threads) == (num_envs, threads, threads)
    assert worker.envs.max_rebuilds == asked.worker.max_restarts


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (
            EnvConfig("test", "CartPole-v1", {}, None, 1.0, "auto", False, False, "ale"),
            "env: env.backend=ale has only Atari games, such as env=Pong or env=ALE/Seaquest-v5, not 'CartPole-v1'; "
            "say env.backend=gymnasium",
        ),
        (
            config("Pong", mode=0),
            "env.kwargs.mode: ale-py's vector environment can't set the mode; say env.backend=gymnasium",
        ),
        (
            config("Pong", difficulty=0),
            "env.kwargs.difficulty: ale-py's vector environment can't set the difficulty; say env.backend=gymnasium",
        ),
        (config("Pong", sticky=2), "env.kwargs.sticky: must be >= 0 and <= 1, got 2"),
    ],
)
def test_what_the_vector_environment_lacks_is_refused(made, answer):
    with pytest.raises(EnvError, match=f"^{re.escape(answer)}$"):
        read_spec(made)


def test_evaluations_may_use_what_the_vector_environment_lacks():
    assert read_spec(config("Pong", difficulty=0), trains=False).id == "ALE/Pong-v5"


@pytest.mark.parametrize(
    ("version", "answer"),
    [
        ("0.12.0", "env.backend=ale needs ale-py 0.12.1, not 0.12.0:  pip install 'ale-py>=0.12.1'"),
        (None, "env.backend=ale needs ale-py:  pip install 'drl-cli[atari]'"),
    ],
)
def test_a_missing_or_old_package_is_named(monkeypatch, version, answer):
    def installed(name):
        if version is None:
            raise atari.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(atari.metadata, "version", installed)
    with pytest.raises(MissingExtra, match=f"^{re.escape(answer)}$"):
        read_spec(config("Pong"))


@pytest.mark.slow
def test_rows_of_a_worker_equal_those_of_single_environments():
    """Two workers whose consoles have equal seeds fill replay with the same bytes."""
    network = ("network.channels=0.125", "network.hidden=[8]", "worker.exploration=[{epsilon: 1.0}]")
    sizes = ("worker.num=1", "worker.envs=2", "worker.block_rows=40", "algo.n_step=3")
    made = make_config(*TINY, "env=Pong", "algo=dqn", "env.backend=ale", *network, *sizes)
    worker, plain = (Worker(made, spec_of("Pong"), 0, 0) for _ in range(2))
    assert isinstance(worker.envs, AleBatch)
    worker.envs, plain.envs = both(config("Pong", 30, noop_max=0))
    header = LoadParams(0, 0, 0, random_actions=True)
    for each in (worker, plain):
        each.policy.load = lambda vector: None
    for _ in range(3):
        (_, rows), (_, expected) = (each.collect(header, np.zeros(1, np.float32)) for each in (worker, plain))
        assert rows.keys() == expected.keys()
        for name, column in expected.items():
            np.testing.assert_array_equal(rows[name], column, err_msg=name)
    assert len(rows["reward"]) > 20
