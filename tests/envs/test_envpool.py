"""The real EnvPool, if it is installed: what EnvPoolBatch relies on, and that its tasks equal Gymnasium's."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("envpool", reason="needs the extra envpool:  pip install 'drl-cli[envpool]'", exc_type=ImportError)

from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.envs.stepping.envpool_batch import EnvPoolBatch

LANDER = {"id": "LunarLander-v3", "continuous": True}
SEEDS = (3, 4, 5, 6)


def config(id, limit=None, backend="envpool", **kwargs):
    return EnvConfig("test", id, kwargs, limit, 1.0, "auto", False, False, backend)


def play(envs, num_steps, how=lambda rng, size, action: rng.uniform(-1, 1, (size, action.size)).astype(np.float32)):
    rng, size = np.random.default_rng(0), len(envs.obs)
    return [(envs.obs.copy(), envs.step(how(rng, size, envs.action))) for _ in range(num_steps)]


def batch(limit=None, seeds=SEEDS, backend="envpool", **kwargs):
    made = config(limit=limit, backend=backend, **kwargs)
    envs = (EnvPoolBatch if backend == "envpool" else EnvBatch)(made, spec := read_spec(made), seeds)
    envs.action = spec.action
    return envs


def choices(rng, size, action):
    return rng.integers(action.size, size=size)


def test_each_step_of_the_pool_is_a_step_of_every_environment():
    envs, elapsed, lengths = batch(**LANDER), [], []
    step = envs.pool.step

    def looked_at(actions):
        answer = step(actions)
        elapsed.append(answer[4]["elapsed_step"].copy())
        return answer

    envs.pool.step = looked_at
    running = np.zeros(len(SEEDS), np.int64)
    for _, taken in play(envs, 600):
        running += 1
        lengths.append(running.copy())
        running[taken.terminated | taken.truncated] = 0
    np.testing.assert_array_equal(elapsed, lengths)  # 0 would be a reset's row
    assert len(envs.take_news()[0]) > 10


def test_returned_arrays_do_not_change():
    envs = batch(**LANDER)
    rows = play(envs, 50)
    copies = [{name: column.copy() for name, column in vars(step).items()} for _, step in rows]
    play(envs, 500)
    for (_, step), copy in zip(rows, copies, strict=True):
        for name, column in vars(step).items():
            np.testing.assert_array_equal(column, copy[name])


def test_an_episode_that_terminates_in_the_last_allowed_step():
    def first(limit):
        steps = [step for _, step in play(batch(limit, seeds=(3,), id="CartPole-v1"), 60, choices)]
        ends = [(t + 1, bool(step.terminated[0]), bool(step.truncated[0])) for t, step in enumerate(steps)]
        return next(end for end in ends if end[1] or end[2])

    length, *ended = first(None)
    assert (ended, first(length)) == ([True, False], (length, True, True))
    assert first(length - 1) == (length - 1, False, True)


@pytest.mark.parametrize("kwargs", [LANDER, *({"id": id} for id in ("Pendulum-v1", "CartPole-v1", "Hopper-v5"))])
def test_returns_of_random_actions_equal_gymnasiums(kwargs):
    """The mean returns of 200 episodes differ by at most four standard errors."""
    if kwargs["id"] == "Hopper-v5":
        pytest.importorskip("mujoco", reason="needs drl-cli[mujoco]")
    how = choices if kwargs["id"] == "CartPole-v1" else play.__defaults__[0]
    returns = []
    for backend in ("envpool", "gymnasium"):
        envs, episodes = batch(backend=backend, seeds=range(8), **kwargs), []
        rng = np.random.default_rng(1)
        while len(episodes) < 200:
            envs.step(how(rng, 8, envs.action))
            episodes += envs.take_news()[0]
        returns.append(np.array([episode.ret for episode in episodes]))
    error = np.sqrt(sum(sample.var() / len(sample) for sample in returns))
    assert abs(returns[0].mean() - returns[1].mean()) < 4 * error


def test_each_step_of_a_cheetah_is_a_step_of_gymnasiums():
    """Gymnasium's environment, put into the state before a step, gives the pool's row. So does the truncated step."""
    pytest.importorskip("mujoco", reason="needs drl-cli[mujoco]")
    alone = gymnasium.make("HalfCheetah-v5").unwrapped
    alone.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (1000, 2, 6)).astype(np.float32)
    left = iter(actions)
    rows = play(batch(id="HalfCheetah-v5", seeds=(1, 2)), 1000, lambda *_: next(left))
    for t in (*range(20), *range(980, 1000)):
        obs, step = rows[t]
        for i in range(2):
            alone.set_state(np.append(0.0, obs[i, :8]), obs[i, 8:])
            next_obs, reward, *_ = alone.step(actions[t, i])
            np.testing.assert_allclose(step.next_obs[i], next_obs, rtol=1e-2, atol=1e-2)
            np.testing.assert_allclose(step.reward[i], reward, rtol=1e-2, atol=1e-2)
    assert not any(step.terminated.any() for _, step in rows)
    assert [t for t, (_, step) in enumerate(rows) if step.truncated.any()] == [999]


@pytest.mark.parametrize(
    ("id", "kwargs", "match"),
    [
        (
            "LunarLander-v3",
            {"continuous": True, "gravity": -3.0},
            "env.kwargs.gravity: EnvPool's LunarLanderContinuous",
        ),
        ("LunarLandr-v3", {}, "EnvPool has no 'LunarLandr-v3'. Did you mean LunarLander-v3"),
        ("BipedalWalker-v3", {"hardcore": "x"}, "EnvPool does not make BipedalWalker-v3 with"),
        ("Blackjack-v1", {}, "EnvPool's Blackjack-v1 has .* observations, Gymnasium's"),
    ],
)
def test_what_is_refused(id, kwargs, match):
    with pytest.raises(EnvError, match=match):
        read_spec(config(id, **kwargs))
