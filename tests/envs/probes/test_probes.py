"""Probes: a policy that knows the right action gets the optimum, a policy that can't see the answer does not."""

import gymnasium
import numpy as np
import pytest

from drl_cli.envs.probes.one_step import PATCH


def make(name, **kwargs):
    return gymnasium.make(f"drl_cli.envs.probes:{name}-v0", disable_env_checker=True, **kwargs)


def play(name, choose, episodes=400, **kwargs):
    """Return the mean return and the observations of all steps."""
    env, returns, seen = make(name, **kwargs), [], []
    env.action_space.seed(1)
    for episode in range(episodes):
        obs, info = env.reset(seed=0 if episode == 0 else None)
        total, ended = 0.0, False
        while not ended:
            assert env.observation_space.contains(obs)
            seen.append(obs)
            obs, reward, terminated, truncated, info = env.step(choose(obs, info, env))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    return np.mean(returns), seen


def random(obs, info, env):
    return env.action_space.sample()


def corner(image):
    """Return the upper left corner of the patch, which is equally bright in all channels."""
    assert image.dtype == np.uint8
    assert (image == image[..., :1]).all()
    ys, xs = np.nonzero(image[..., 0])
    assert (len(ys), set(np.unique(image).tolist())) == (PATCH**2, {0, 255})
    return np.array([ys.min(), xs.min()])


@pytest.mark.parametrize("size", [84, 32])
def test_patch_probes(size):
    half, room = size // 2, size - PATCH

    def quadrant(obs, info, env):
        assert obs.shape == (size, size, 4)
        y, x = corner(obs)
        return 2 * int(y >= half) + int(x >= half)

    best, seen = play("Patch", quadrant, 200, size=size)
    assert best == 1.0
    assert len({image.sum() for image in seen}) == 1  # an average over positions is always the same
    assert set(np.bincount([quadrant(image, None, None) for image in seen]) > 30) == {True}
    assert abs(play("Patch", random, size=size)[0] - 0.25) < 0.07
    place = lambda obs, info, env: (2 * corner(obs) / room - 1).astype(np.float32)  # noqa: E731
    best, seen = play("PatchReach", place, 200, size=size)
    assert -1e-9 < best <= 0
    assert len({image.sum() for image in seen}) == 1
    assert abs(play("PatchReach", lambda *_: np.zeros(2, np.float32), size=size)[0] + 2 / 3) < 0.1


def test_probes_that_need_both_parts():
    def both(obs, info, env):
        return int((corner(obs["image"])[1] >= 42) != (obs["vector"][0] < 0))

    best, seen = play("Both", both, 200)
    assert best == 1.0
    right = np.array([both(obs, None, None) for obs in seen])
    for cue in ([corner(obs["image"])[1] >= 42 for obs in seen], [obs["vector"][0] < 0 for obs in seen]):
        assert abs(np.mean(right == np.array(cue)) - 0.5) < 0.12

    def reach(obs, info, env):
        return np.array([2 * corner(obs["image"])[1] / 72 - 1, obs["vector"][0]], np.float32)

    assert -1e-9 < play("BothReach", reach, 200)[0] <= 0
    assert abs(play("BothReach", lambda *a: reach(*a) * np.float32([1, 0]))[0] + 1 / 3) < 0.06
    assert abs(play("BothReach", lambda *a: reach(*a) * np.float32([0, 1]))[0] + 1 / 3) < 0.06


def test_switches():
    right = lambda obs, info, env: np.array([1 + obs[:3].argmax(), 5 + obs[3:].argmax()])  # noqa: E731
    assert play("Switches", right)[0] == 1.0
    assert play("Switches", lambda *a: np.array([right(*a)[0], 11 - right(*a)[1]]))[0] == 0.5
    assert abs(play("Switches", random)[0] - 5 / 12) < 0.06


@pytest.mark.parametrize("delay", [0, 1, 10])
def test_the_cue_is_seen_once(delay):
    memory = {}

    def remember(obs, info, env):
        if obs[:2].any():
            memory["cue"] = int(obs[:2].argmax())
        return memory["cue"]

    best, seen = play("Cue", remember, 100, delay=delay)
    assert best == 1.0
    steps = np.array(seen).reshape(100, delay + 1, 3)
    assert (steps[:, 0, :2].sum(-1) == 1).all()
    assert not steps[:, 1:, :2].any()
    assert (steps[:, :, 2] == (np.arange(delay + 1) == delay)).all()
    assert abs(play("Cue", lambda obs, info, env: 1, delay=delay)[0] - 0.5) < 0.1
    assert play("Cue", lambda *a: 1 - remember(*a), 50, delay=delay)[0] == 0.0


def test_masked_probe():
    assert play("Masked", lambda obs, info, env: obs.argmax())[0] == 1.0
    assert abs(play("Masked", random)[0] + 0.25) < 0.07  # 1/4 right, 1/4 allowed, 1/2 not

    def other(obs, info, env):
        return (obs["action_mask"].reshape(2, 4) > obs["goal"].reshape(2, 4)).argmax(-1)

    assert play("Masked", other, part=True, components=True)[0] == 0.0


@pytest.mark.parametrize(("goes_right", "expected"), [(True, 12.0), (False, 0.059)])
def test_chain_has_a_small_reward_near_and_a_large_one_far_away(goes_right, expected):
    def choose(obs, info, env):
        right = env.unwrapped.right[obs.argmax()]
        return right if goes_right else 1 - right

    assert play("Chain", choose, 2)[0] == pytest.approx(expected)
    expected += 91.0 if goes_right else 0.091
    assert play("Chain", choose, 2, length=150)[0] == pytest.approx(expected)
