"""Recorded episodes equal the episodes of an evaluation."""

import numpy as np
import pytest
from PIL import Image
from policies import make_policy

from drl_cli.deploy.play import play_together, record, watch
from drl_cli.envs.config import EnvFault
from drl_cli.envs.faults import CantRender, frame, frames_per_second


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    overrides = ("env=everything:Everything-v0", "algo=ppo", "+env.kwargs.discrete=true", "+env.kwargs.masked=true")
    return make_policy(tmp_path_factory.mktemp("run"), *overrides, "network.memory=lstm")


def test_returns_and_steps_equal_those_of_an_evaluation(policy, tmp_path):
    path = tmp_path / "a.gif"
    played = record([policy] * 3, ["one", "two", "three"], [5, 6, 7], path, 100, None)
    returns = play_together(policy, policy, [5, 6, 7])
    assert [episode.ret for episode in played] == returns.tolist()
    assert len({*returns}) > 1
    assert [(episode.title, episode.steps, episode.was_cut) for episode in played] == [
        ("one", 12, False), ("two", 12, False), ("three", 12, False),
    ]  # fmt: skip
    with Image.open(path) as image:
        assert image.info["duration"] == 100  # the environment has 10 frames per second
        total = 0
        for i in range(image.n_frames):  # Pillow joins equal frames
            image.seek(i)
            total += image.info["duration"]
        assert total == 3 * (13 + 10) * 100  # every step of each episode, and its last frame for a second


def test_the_environment_has_the_arguments_of_evaluations(tmp_path):
    overrides = ("env=everything:Everything-v0", "algo=sac", "+manage.env_kwargs.bonus=100")
    policy = make_policy(tmp_path, *overrides)
    (episode,) = record([policy], [""], [5], tmp_path / "a.gif", 100, None)
    assert episode.ret > 1000
    assert play_together(policy, policy, [5]).tolist() == [episode.ret]


def test_an_episode_is_cut_where_asked(policy, tmp_path):
    (episode,) = record([policy], [""], [5], tmp_path / "a.gif", 4, 50.0)
    assert (episode.steps, episode.was_cut) == (4, True)


def test_an_environment_without_frames_is_an_error_and_leaves_no_file(tmp_path):
    policy = make_policy(tmp_path, "env=everything:Stacked-v0", "algo=dqn")
    with pytest.raises(CantRender, match=r"Stacked-v0.*rgb_array"):
        record([policy], [""], [0], tmp_path / "a.gif", 4, None)
    assert list(tmp_path.iterdir()) == []


class Screen:
    metadata = None

    def __init__(self, picture):
        self.picture = picture

    def render(self):
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture


def test_render_must_return_frames():
    for picture in (None, [np.zeros((2, 2, 3))], np.zeros((2, 2)), np.zeros((2, 2, 4)), NotImplementedError()):
        with pytest.raises(CantRender, match=r"Some-v0.*rgb_array"):
            frame("Some-v0", Screen(picture))
    with pytest.raises(EnvFault, match="render raised KeyError"):
        frame("Some-v0", Screen(KeyError("x")))
    assert frame("Some-v0", Screen(np.zeros((2, 2, 3)))).dtype == np.uint8
    assert frames_per_second(Screen(None)) == 30.0


def test_frames_name_environment_seed_step_and_return(policy, tmp_path, monkeypatch):
    captions = []
    monkeypatch.setattr("drl_cli.deploy.play.captioned", lambda picture, lines: captions.append(lines) or picture)
    record([policy], ["one"], [5], tmp_path / "a.gif", 2, None)
    assert [lines[:2] for lines in captions] == [["everything:Everything-v0   seed 5", "one"]] * 13  # 1 s of the last
    texts = [lines[2] for lines in captions]
    assert [text.split("   ")[1] for text in texts[:3]] == ["step 0", "step 1", "step 2"]
    assert all(text.startswith("return ") for text in texts)


def test_a_window_needs_an_environment_that_has_one(tmp_path):
    policy = make_policy(tmp_path, "env=everything:Stacked-v0", "algo=dqn")
    with pytest.raises(CantRender, match=r"Stacked-v0.*render_mode=human"):
        watch([policy], ["one"], [5], 2)


def test_episodes_in_a_window_equal_those_of_a_video(tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    policy = make_policy(tmp_path, "env=CartPole-v1", "algo=dqn")
    shown, recorded = watch([policy], ["one"], [5], 9), record([policy], ["one"], [5], tmp_path / "a.gif", 9, None)
    assert shown == recorded
    assert shown[0].steps > 1
