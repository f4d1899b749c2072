"""Recorded episodes equal the episodes of an evaluation, and are in a video."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from policies import make_policy

from drl_cli.deploy import play
from drl_cli.deploy.play import Video, captioned, find_ffmpeg, play_together, record, watch
from drl_cli.deploy.trained import open_policy, stages
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


def frames(num, height=300, width=400):
    return [np.full((height, width, 3), 5 * i % 256, np.uint8) for i in range(num)]


def write(path, fps, pictures):
    with Video(path, fps) as one:
        for frame in pictures:
            one.write(frame, [])


def test_a_gif_has_its_frames_at_most_25_a_second_and_320_wide(tmp_path):
    path = tmp_path / "new" / "a.gif"
    write(path, 50.0, frames(20))
    with Image.open(path) as image:
        assert (image.n_frames, image.size) == (10, (320, 240))
        image.seek(9)
        image.load()
        assert image.info["duration"] == 40
        assert abs(np.asarray(image.convert("RGB")).mean() - 90) < 3
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_long_gif_keeps_all_frames(tmp_path):
    write(tmp_path / "a.gif", 20.0, frames(150, 30, 40))
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 150


def test_mp4_by_ffmpeg_with_odd_sides(tmp_path):
    imageio, path = pytest.importorskip("imageio_ffmpeg"), tmp_path / "a.mp4"
    write(path, 20.0, [*frames(9, 301, 251), *frames(1, 100, 100)])  # the last frame has another size
    reader = imageio.read_frames(str(path))
    meta = next(reader)
    assert ((meta["size"], meta["fps"], meta["codec"]), len(list(reader))) == (((252, 302), 20.0, "h264"), 10)


def test_an_error_of_ffmpeg_is_raised_and_leaves_no_file(tmp_path):
    if find_ffmpeg() is None:
        pytest.skip("no ffmpeg here")
    with pytest.raises(OSError, match="ffmpeg"):
        write(tmp_path / "a.mp4", 0.0, frames(200))
    assert list(tmp_path.iterdir()) == []


def test_an_ffmpeg_that_does_not_end_is_killed(tmp_path, monkeypatch):
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text("#!/bin/sh\nexec sleep 600\n")
    ffmpeg.chmod(0o755)
    monkeypatch.setattr(play, "find_ffmpeg", lambda: str(ffmpeg))
    monkeypatch.setattr(play, "END_S", 0.1)
    monkeypatch.setattr(play, "LEAST_HEIGHT", 10)  # the frame fits into the pipe
    with pytest.raises(OSError, match=r"ffmpeg does not end within 0\.1 s"):
        write(tmp_path / "a.mp4", 20.0, frames(1, 10, 10))
    assert list(tmp_path.iterdir()) == [ffmpeg]


def test_an_exception_leaves_no_file(tmp_path):
    with pytest.raises(AttributeError):
        write(tmp_path / "a.gif", 20.0, [*frames(1), None])
    assert list(tmp_path.iterdir()) == []


def test_captions_cover_the_upper_left_corner_and_nothing_else():
    frame = np.full((400, 600, 3), 200, np.uint8)
    picture = captioned(frame, ["sac", "return 12.5"])
    changed = (picture != frame).any(-1)
    assert changed[:30, :50].any()
    assert not changed[80:].any()
    assert not changed[:, 300:].any()
    assert picture.max() > 250  # white text
    other = captioned(frame, ["sac", "return 13.5"])
    assert (other != picture).any()
    assert (frame == 200).all()
    assert np.array_equal(captioned(frame, []), frame)


def test_small_frames_are_enlarged_by_a_whole_number():
    frame = np.arange(84 * 60 * 3, dtype=np.uint32).astype(np.uint8).reshape(84, 60, 3)
    picture = captioned(frame, [])
    assert picture.shape == (252, 180, 3)
    assert np.array_equal(picture[::3, ::3], frame)


def test_the_stages_of_a_run_are_its_checkpoints_without_repeats(copied):
    checkpoints = copied / "checkpoints"
    files = [path / "manifest.json" for path in checkpoints.glob("step_*")]
    steps = sorted({json.loads(file.read_text())["env_steps"] for file in files})
    assert len(steps) > 1
    shutil.copytree(files[0].parent, checkpoints / "step_000000000-again")
    (checkpoints / "step_notes").write_text("a file of the user")
    assert [stage.manifest["env_steps"] for stage in stages(open_policy(str(copied)))] == steps
