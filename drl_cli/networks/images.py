"""Which observations are images, and how large what a convolution torso makes of one is. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

from drl_cli.types import Column

LEAST_SIDE = 3
"""Pixels: the smallest image that the smallest convolution fits into."""

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel, stride of each convolution of Mnih et al. 2015 (Nature 518): from 36 pixels up."""
SMALL = ((16, 3, 1),)
"""The same of Young & Tian 2019 (MinAtar, arXiv 1903.03176), for images of fewer pixels."""
NATURE_SIDE = 36
IMPALA = (16, 32, 32)
"""Channels of each section of the deep residual network of Espeholt et al. 2018 (arXiv 1802.01561, figure 3)."""
IMPALA_SIDE = 8
"""Pixels that its three poolings, each halving the sides, leave at least one of."""

Kind = Literal["cnn", "resnet"]


@dataclass(frozen=True)
class Image:
    """An observation (height, width), or with channels last or first, or `frames` of one of these as channels more.

    The channels are the last axis unless the first is shorter than both others (frames stacked by Gymnasium).
    """

    height: int
    width: int
    channels: int
    frames: int
    channels_first: bool

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.frames * self.channels}"

    @property
    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The axes behind the row's in an observation; and the order, rows first, in which the sides are the last."""
        if self.channels_first:
            return (self.frames, self.channels, self.height, self.width), (0, 1, 2, 3, 4)
        return (self.frames, self.height, self.width, self.channels), (0, 1, 4, 2, 3)


def image(column: Column) -> Image | None:
    """The image that an observation or part of one is, if it is one: three axes, or two of bytes or booleans."""
    shape, frames = column.shape, 1
    if column.choices or len(shape) > 4 or len(shape) < (2 if column.dtype in ("uint8", "bool") else 3):
        return None
    if len(shape) == 4:
        frames, shape = shape[0], shape[1:]
    if len(shape) == 2:
        shape = (*shape, 1)
    first = shape[0] < min(shape[1:])
    channels, height, width = shape if first else (shape[2], *shape[:2])
    return Image(height, width, channels, frames, first) if min(height, width) >= LEAST_SIDE else None


def is_large(image: Image) -> bool:
    """Whether the convolutions of Mnih et al. fit into such an image."""
    return min(image.height, image.width) >= NATURE_SIDE


def convolutions(image: Image, times: float) -> list[tuple[int, int, int]]:
    """The layers of the torso `cnn` for such an image, with `times` the channels."""
    layers = NATURE if is_large(image) else SMALL
    return [(max(1, round(channels * times)), kernel, stride) for channels, kernel, stride in layers]


def sections(times: float) -> list[int]:
    """The channels of the torso `resnet`'s sections, `times` as many as published."""
    return [max(1, round(channels * times)) for channels in IMPALA]


def num_features(kind: Kind, image: Image, times: float) -> int:
    """Numbers that a torso makes of an image; no average is taken over positions."""
    sides = (image.height, image.width)
    if kind == "resnet":
        channels = sections(times)[-1]
        for _ in IMPALA:
            sides = ((sides[0] + 1) // 2, (sides[1] + 1) // 2)
    else:
        layers = convolutions(image, times)
        channels = layers[-1][0]
        for _, kernel, stride in layers:
            sides = ((sides[0] - kernel) // stride + 1, (sides[1] - kernel) // stride + 1)
    return channels * sides[0] * sides[1]
