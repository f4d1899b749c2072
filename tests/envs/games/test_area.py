"""Area resizing equals its definition, and OpenCV byte by byte."""

import hashlib

import numpy as np
import pytest

from drl_cli.envs.games.area import AreaResize

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
    rng, resize = np.random.default_rng(0), AreaResize(shape, 84)
    image = rng.integers(256, size=shape).astype(np.uint8)
    small = resize(image)
    assert (small.dtype, small.shape) == (np.uint8, (84, 84))
    assert np.abs(small - exact(image, 84)).max() < 0.5 + 1e-4
    assert (resize(np.full(shape, 201, np.uint8)) == 201).all()


def test_ties_round_as_in_opencv():
    """683 of the means end in .5; OpenCV 5.0, which gave this digest, rounds 30 of them to the odd side."""
    image = (np.random.default_rng(0).integers(13, size=(210, 160)) * 20).astype(np.uint8)
    small = AreaResize((210, 160), 84)(image)
    assert hashlib.sha256(small.tobytes()).hexdigest()[:16] == "fe32752a810bed19"


@pytest.mark.parametrize("shape", SHAPES)
def test_opencvs_bytes(shape):
    cv2 = pytest.importorskip("cv2", reason="compares with OpenCV:  pip install opencv-python-headless")
    rng, resize = np.random.default_rng(0), AreaResize(shape, 84)
    for step in (1, 2, 5, 25, 40, 51):
        for _ in range(3):
            image = (rng.integers(255 // step + 1, size=shape) * step).astype(np.uint8)
            np.testing.assert_array_equal(resize(image), cv2.resize(image, (84, 84), interpolation=cv2.INTER_AREA))
