"""Area resizing equals its definition, and OpenCV byte by byte."""

import hashlib
import re
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from choices import some

from drl_cli.envs.atari import area_resize
from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import build, read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.types import FrameStack

SHAPES = [(210, 160), (250, 160), (214, 160), (230, 160)]


def exact(image, size):
    """The mean of the covered area, in float64."""

    def weights(length):
        edges = np.arange(size + 1)[:, None] * length / size
        covered = np.minimum(edges[1:], np.arange(1, length + 1)) - np.maximum(edges[:-1], np.arange(length))
        return np.maximum(covered, 0) * size / length

    return weights(image.shape[0]) @ image @ weights(image.shape[1]).T


@pytest.mark.parametrize("shape", SHAPES)
def test_means_of_areas(shape):
    rng, resize = np.random.default_rng(0), area_resize(shape, 84)
    image = rng.integers(256, size=shape).astype(np.uint8)
    small = resize(image)
    assert (small.dtype, small.shape) == (np.uint8, (84, 84))
    assert np.abs(small - exact(image, 84)).max() < 0.5 + 1e-4
    assert (resize(np.full(shape, 201, np.uint8)) == 201).all()


def test_ties_round_as_in_opencv():
    """683 of the means end in .5; OpenCV 5.0, which gave this digest, rounds 30 of them to the odd side."""
    image = (np.random.default_rng(0).integers(13, size=(210, 160)) * 20).astype(np.uint8)
    small = area_resize((210, 160), 84)(image)
    assert hashlib.sha256(small.tobytes()).hexdigest()[:16] == "fe32752a810bed19"


ale_py = pytest.importorskip("ale_py", reason="needs the extra atari:  pip install 'drl-cli[atari]'")


def config(game="Breakout", **kwargs):
    return EnvConfig(game, f"ALE/{game}-v5", kwargs, None, 1.0, "auto", False, False)


def make(game="Breakout", **kwargs):
    return build(config(game, **kwargs)).unwrapped


def walk(env, steps, seed=7):
    """Yield what an environment returns for random actions, over several episodes."""
    rng = np.random.default_rng(1)
    yield env.reset(seed=seed)[0], 0.0, False, False, {}
    for _ in range(steps):
        given = env.step(int(rng.integers(env.action_space.n)))
        yield given
        if given[2] or given[3]:
            yield env.reset()[0], 0.0, False, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(("game", "protocol"), [("Pong", "nature"), ("Breakout", "nature"), ("Breakout", "machado")])
def test_equals_gymnasiums_preprocessing(game, protocol):
    cv2 = pytest.importorskip("cv2", reason="Gymnasium's needs OpenCV:  pip install opencv-python-headless")
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    cv2.setNumThreads(1)
    is_machado = protocol == "machado"
    kwargs = {"repeat_action_probability": 0.25 * is_machado, "full_action_space": is_machado}
    theirs = gymnasium.make(f"ale_py:ALE/{game}-v5", frameskip=1, **kwargs)
    theirs = FrameStackObservation(AtariPreprocessing(theirs, noop_max=0 if is_machado else 30), 4)
    ours = make(game, protocol=protocol)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    for one, other in zip(walk(ours, 2000), walk(theirs, 2000), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:4] == other[1:4]


@pytest.mark.parametrize(("game", "digest"), [("Pong", "99043e838eee04f9"), ("Breakout", "d3eb0791182d5569")])
def test_frames_have_the_recorded_digest(game, digest):
    """The digests are of 300 steps with ale-py 0.12 and OpenCV 5.0, for machines without OpenCV."""
    seen = hashlib.sha256()
    for obs, *_ in walk(make(game), 300):
        seen.update(obs.tobytes())
    assert seen.hexdigest()[:16] == digest


@pytest.mark.slow
@pytest.mark.parametrize(("game", "kwargs"), [("Breakout", {}), ("Pong", {"mode": 1, "difficulty": 3})])
def test_rewards_and_ends_equal_those_of_ale_py(game, kwargs):
    """The environment of ale_py has no pooling, stacking or no-ops."""
    plain = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}
    theirs = gymnasium.make(f"ale_py:ALE/{game}-v5", **plain, **kwargs)
    ours = make(game, noop_max=0, **kwargs)
    played = [[given[1:4] for given in walk(env, 1000)] for env in (ours, theirs)]
    assert played[0] == played[1]
    assert {np.sign(reward) for reward, *_ in played[0]} == ({0, 1} if game == "Breakout" else {0, -1})
    assert any(terminated for _, terminated, _ in played[0])


def test_returned_observations_do_not_change():
    env = make()
    seen = [env.reset(seed=0)[0]]
    kept = [seen[0].copy()]
    for _ in range(2):
        seen.append(env.step(1)[0])
        kept.append(seen[-1].copy())
    np.testing.assert_array_equal(seen, kept)
    for before, after in pairwise(seen):
        np.testing.assert_array_equal(after[:-1], before[1:])
        assert not np.array_equal(after[-1], before[-1])


def test_a_game_of_five_lives_loses_four_of_them_before_it_ends():
    marks = [(info.get("life_lost", False), terminated) for _, _, terminated, _, info in walk(make(), 700)]
    ends = [i for i, (_, terminated) in enumerate(marks) if terminated]
    assert len(ends) > 1
    for begin, end in zip([0, *ends], ends, strict=False):
        assert [lost for lost, _ in marks[begin : end + 1]].count(True) == 4
    assert not any(lost and terminated for lost, terminated in marks)


def test_protocols_set_defaults():
    nature, machado = make(), make(protocol="machado")
    assert (nature.action_space.n, machado.action_space.n) == (4, 18)
    assert [env._ale.getFloat("repeat_action_probability") for env in (nature, machado)] == [0.0, 0.25]
    assert [(env.noop_max, env.episodic_life) for env in (nature, machado)] == [(30, True), (0, False)]
    mixed = make(protocol="machado", sticky=0.0, full_action_set=False, noop_max=5, episodic_life=True)
    assert (mixed.action_space.n, mixed._ale.getFloat("repeat_action_probability")) == (4, 0.0)
    assert (mixed.noop_max, mixed.episodic_life) == (5, True)
    assert make(stack=2, frameskip=2).observation_space.shape == (2, 84, 84)


@pytest.mark.parametrize(
    ("kwargs", "answer"),
    [
        ({"protocol": "other"}, "env.kwargs.protocol=other: there are nature, machado"),
        ({"mode": 99}, "env.kwargs.mode=99: there are 0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44"),
        ({"difficulty": 2}, "env.kwargs.difficulty=2: there are 0, 1"),
        ({"sticky": 2}, "env.kwargs.sticky: must be >= 0 and <= 1, got 2"),
        ({"sticky": "a"}, "env.kwargs.sticky: must be a number, got 'a'"),
        ({"noop_max": -1}, "env.kwargs.noop_max: must be >= 0, got -1"),
        ({"frameskip": 0}, "env.kwargs.frameskip: must be >= 1, got 0"),
        ({"stack": True}, "env.kwargs.stack: must be a whole number, got True"),
        ({"max_frames": 0.5}, "env.kwargs.max_frames: must be a whole number, got 0.5"),
    ],
)
def test_wrong_kwargs_are_refused(kwargs, answer):
    with pytest.raises(EnvError, match=f"^{re.escape(answer)}$"):
        make(**kwargs)


def test_a_long_game_is_truncated():
    ends = [(terminated, truncated) for _, _, terminated, truncated, _ in walk(make("Pong", max_frames=200), 60)]
    assert (False, True) in ends
    assert not any(terminated for terminated, _ in ends)


def test_the_screen_in_colour():
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    assert (env.render().shape, env.render().dtype, env.metadata["render_fps"]) == ((210, 160, 3), np.uint8, 15)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", some(["nature", "machado"], "machado"))
def test_a_resume_continues_episodes(protocol):
    """A resumed batch continues the third episode or so of each environment, and then begins equal ones."""
    made = config("Breakout", protocol=protocol, max_frames=200)
    spec, rng = read_spec(made), np.random.default_rng(0)
    first, second = (EnvBatch(made, spec, [3, 4]) for _ in range(2))
    size = spec.action.choices[0]
    for _ in range(130):
        first.step(rng.integers(size, size=2))
    assert len(first.take_news()[0]) >= 4
    assert second.load_state(first.state()) == []
    for _ in range(80):  # into the next episodes
        actions = rng.integers(size, size=2)
        one, other = first.step(actions), second.step(actions)
        for column in ("next_obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
    assert len(first.take_news()[0]) >= 2


def test_frame_stack_of_a_game_that_begins_black():
    assert read_spec(config("KungFuMaster")).frame_stacks == {"": FrameStack(0, 4)}


@pytest.mark.parametrize("kwargs", [{"episodic_life": False}, {"protocol": "machado"}])
def test_no_life_lost_without_episodic_life(kwargs):
    assert not any(info for *_, info in walk(make(**kwargs), 400))
