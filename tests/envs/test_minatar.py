"""MinAtar games equal the environments of the package, without its imports."""

import subprocess
import sys

import numpy as np
import pytest

from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import build, read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.networks.inputs import Image, as_image
from drl_cli.types import Column

pytest.importorskip("minatar", reason="needs the extra minatar:  pip install 'drl-cli[minatar]'")

GAMES = {"Asterix": (4, 5), "Breakout": (4, 3), "Freeway": (7, 3), "Seaquest": (10, 6), "SpaceInvaders": (6, 4)}
"""Channels, and number of actions with an effect."""


def config(game="Breakout", version=1, **kwargs):
    return EnvConfig(game, f"MinAtar/{game}-v{version}", kwargs, None, 1.0, "auto", False, False)


@pytest.mark.parametrize("game", GAMES)
def test_equals_the_environment_of_the_package(game):
    gym = pytest.importorskip("minatar.gym")
    name = {"SpaceInvaders": "space_invaders"}.get(game, game.lower())
    ours, theirs = build(config(game)), gym.BaseEnv(name, use_minimal_action_set=True)
    assert ours.unwrapped.action_space == theirs.action_space
    assert ours.unwrapped.observation_space.shape == tuple(theirs.observation_space.shape)
    rng, ends = np.random.default_rng(0), 0
    assert np.array_equal(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
    for _ in range(800):
        action = int(rng.integers(ours.action_space.n))
        one, other = ours.step(action), theirs.step(action)
        assert np.array_equal(one[0], other[0])
        assert one[1:4] == other[1:4]
        if one[2]:
            ends += 1
            assert np.array_equal(ours.reset()[0], theirs.reset()[0])
    assert ends > 1 or game == "Freeway"  # one of 2,500 steps


@pytest.mark.parametrize("game", GAMES)
def test_spaces(game):
    spec = read_spec(config(game))
    assert spec.obs == Column((10, 10, GAMES[game][0]), "bool")
    assert as_image(spec.obs) == Image(height=10, width=10, channels=GAMES[game][0], frames=1, channels_first=False)
    assert spec.action.choices == (GAMES[game][1],)
    assert read_spec(config(game, version=0)).action.choices == (6,)
    assert read_spec(config(game, minimal_actions=False)).action.choices == (6,)


@pytest.mark.parametrize("game", ["Breakout", "SpaceInvaders"])
def test_a_resume_continues_episodes(game):
    spec, rng = read_spec(config(game)), np.random.default_rng(0)
    first, second = (EnvBatch(config(game), spec, [3, 4]) for _ in range(2))
    size = spec.action.choices[0]
    for _ in range(300):
        first.step(rng.integers(size, size=2))
    assert second.load_state(first.state()) == []
    for _ in range(300):
        actions = rng.integers(size, size=2)
        one, other = first.step(actions), second.step(actions)
        for column in ("next_obs", "reward", "terminated"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


def test_sticky_repeats_actions():
    def walls(sticky):
        env = build(config(sticky=sticky))
        env.reset(seed=0)
        places = [env.step(action)[0][9, :, 0].argmax() for action in (1, 1, 2, 2, 1)]  # left, left, right, right, left
        return [int(place) for place in places]

    assert walls(0.0) == [3, 2, 3, 4, 3]
    assert walls(1.0) == [4] * 5  # repeats the no-op before the first step


@pytest.mark.parametrize("sticky", [-0.1, 2, "a"])
def test_sticky_has_to_be_a_probability(sticky):
    with pytest.raises(EnvError, match=r"^env\.kwargs\.sticky: must be "):
        build(config(sticky=sticky))


def test_the_board_in_colour():
    env = build(config(render_mode="rgb_array"))
    obs, _ = env.reset(seed=0)
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((160, 160, 3), np.uint8)
    shown = picture[8::16, 8::16].any(2)
    np.testing.assert_array_equal(shown, obs.any(2))


def test_no_plotting_packages_are_imported_to_play():
    script = (
        "import sys; from drl_cli.envs.make import build; from drl_cli.envs.config import EnvConfig\n"
        "build(EnvConfig('x', 'MinAtar/Breakout-v1', {}, None, 1.0, 'auto', False, False)).reset()\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "seaborn", "pandas", "minatar.environment"} & set(done.stdout.split())
