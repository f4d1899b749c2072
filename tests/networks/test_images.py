import pytest

from drl_cli.networks.inputs import as_image, num_features
from drl_cli.types import Column


@pytest.mark.parametrize(
    ("shape", "dtype", "text", "channels_first"),
    [
        ((84, 84, 4), "uint8", "84x84x4", False),
        ((4, 84, 84), "uint8", "84x84x4", True),
        ((3, 64, 48), "float32", "64x48x3", True),
        ((210, 160, 3), "uint8", "210x160x3", False),
        ((84, 84), "uint8", "84x84x1", False),
        ((10, 10), "bool", "10x10x1", False),
        ((10, 10, 10), "bool", "10x10x10", False),
        ((7, 7, 20), "uint8", "7x7x20", False),  # one-hot MiniGrid
        ((4, 84, 84, 1), "uint8", "84x84x4", False),  # frames stacked by Gymnasium, channels last
        ((4, 84, 64, 3), "uint8", "84x64x12", False),
        ((2, 3, 64, 64), "uint8", "64x64x6", True),
    ],
)
def test_images(shape, dtype, text, channels_first):
    found = as_image(Column(shape, dtype))
    assert (str(found), found.channels_first) == (text, channels_first)


@pytest.mark.parametrize(
    "column",
    [
        *[Column((8,), "float32"), Column((), "int32", (5,)), Column((12, 12), "float32")],
        *[Column((3, 3, 3), "int32", (2,) * 27), Column((2, 9, 9, 9, 3), "uint8"), Column((2, 30, 2), "uint8")],
        Column((2, 84), "uint8"),
    ],
)
def test_no_images(column):
    assert as_image(column) is None


@pytest.mark.parametrize(
    ("kind", "shape", "times", "size"),
    [
        ("cnn", (84, 84, 4), 1, 3136),  # the published 7 x 7 x 64
        *[("cnn", (84, 84, 4), 0.5, 1568), ("cnn", (36, 36, 1), 1, 64), ("cnn", (36, 44, 1), 1, 128)],
        ("cnn", (84, 35, 1), 1, 82 * 33 * 16),
        ("cnn", (10, 10, 4), 1, 1024),  # the published 8 x 8 x 16
        ("resnet", (84, 84, 4), 1, 3872),  # 11 x 11 x 32
        ("resnet", (72, 96, 3), 1, 3456),  # the published frame: 9 x 12 x 32
        ("resnet", (8, 8, 3), 0.01, 1),
    ],
)
def test_features(kind, shape, times, size):
    assert num_features(kind, as_image(Column(shape, "uint8")), times) == size
