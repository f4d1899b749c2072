import io

import numpy as np
import pytest
from PIL import Image

from drl_cli.metrics.tensorboard import BUFFER_BYTES, MAX_BYTES, MAX_FRAMES, Film, size_of


def frame(number, shape=(20, 30, 3)):
    return np.full(shape, number % 256, np.uint8)


def films(steps, fps=50.0, make=frame):
    film, drawn = Film(fps), []

    def render(number):
        drawn.append(number)
        return make(number)

    for number in range(steps):
        film.step(lambda number=number: render(number))
    return film, drawn


def frames_of(gif):
    with Image.open(io.BytesIO(gif)) as image:
        found = []
        for i in range(image.n_frames):
            image.seek(i)
            found.append((int(np.asarray(image.convert("RGB"))[0, 0, 0]), image.info["duration"]))
        return found


@pytest.mark.parametrize(("steps", "stride"), [(5, 1), (MAX_FRAMES, 1), (MAX_FRAMES + 1, 2), (5 * MAX_FRAMES, 8)])
def test_a_long_episode_loses_frames_evenly_and_keeps_its_pace(steps, stride):
    film, drawn = films(steps)
    shown = frames_of(film.gif())
    assert [number for number, _ in shown] == [number % 256 for number in range(0, steps, stride)]
    assert {duration for _, duration in shown} == {20 * stride}
    assert len(drawn) < MAX_FRAMES * (1 + steps // MAX_FRAMES)


def test_large_pictures_become_small_and_keep_their_shape():
    film, _ = films(2, make=lambda number: frame(number, (300, 720, 3)))
    assert size_of(film.gif()) == (240, 100)
    film, _ = films(2, make=lambda number: frame(number, (40, 50, 3)))
    assert size_of(film.gif()) == (50, 40)


def test_noise_has_fewer_frames():
    rng = np.random.default_rng(0)
    film, _ = films(60, make=lambda number: rng.integers(0, 256, (160, 240, 3), dtype=np.uint8))
    content = film.gif()
    assert len(content) <= MAX_BYTES
    assert 4 < len(frames_of(content)) < 30
    assert MAX_BYTES < BUFFER_BYTES - 1000  # an event is one film at most


@pytest.mark.parametrize(
    "strange", [None, [frame(0)], frame(0, (20, 30)), frame(0).astype(np.float32), frame(0, (9, 9, 4))]
)
def test_a_frame_that_is_no_picture_is_refused(strange):
    with pytest.raises(ValueError, match="not uint8"):
        films(1, make=lambda number: strange)
