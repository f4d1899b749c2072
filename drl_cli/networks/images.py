"""The layout of image observations, and the sizes of convolutional torsos. This file must not import torch."""

from dataclasses import dataclass
from typing import Literal

from drl_cli.types import Column

LEAST_SIDE = 3
"""An observation counts as an image if its height and width are at least this number of pixels."""

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""(channels, kernel, stride) of each convolution of Mnih et al. 2015 (Nature 518)."""
NATURE_SIDE = 36
"""Images whose height and width are at least this number of pixels use the convolutions NATURE."""
SMALL = ((16, 3, 1),)
"""(channels, kernel, stride) of the convolution for smaller images (MinAtar, Young & Tian 2019, arXiv 1903.03176)."""
IMPALA = (16, 32, 32)
"""Channels of each section of the deep residual network of Espeholt et al. 2018 (arXiv 1802.01561, figure 3)."""
IMPALA_SIDE = 8
"""The smallest height and width, in pixels, of an image for `resnet`, whose pooling halves both three times."""

Kind = Literal["cnn", "resnet"]


@dataclass(frozen=True)
class Image:
    """The layout of an image observation.

    The shape of an image is (height, width), (height, width, channels) or (channels, height, width). The channels come
    first if the first axis is shorter than both other axes, as in frames that Gymnasium stacks. A stack of images has
    one more axis in front, of length `frames`. The network treats the frames as more channels.
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
        """The shape of an observation with a separate axis of frames, and the order of axes for `permute`.

        After a batch axis is added in front, `permute` gives `[batch, frames, channels, height, width]`.
        """
        if self.channels_first:
            return (self.frames, self.channels, self.height, self.width), (0, 1, 2, 3, 4)
        return (self.frames, self.height, self.width, self.channels), (0, 1, 4, 2, 3)


def image(column: Column) -> Image | None:
    """Return the image layout of a part of an observation, or None if the part is not an image.

    A part with three or four axes is an image, and so is a part with two axes of bytes or booleans. Height and width
    need at least LEAST_SIDE pixels.
    """
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
    """Return whether the image is large enough for the convolutions NATURE."""
    return min(image.height, image.width) >= NATURE_SIDE


def convolutions(image: Image, times: float) -> list[tuple[int, int, int]]:
    """Return (channels, kernel, stride) of each layer of `cnn`. `times` multiplies the published channels."""
    layers = NATURE if is_large(image) else SMALL
    return [(max(1, round(channels * times)), kernel, stride) for channels, kernel, stride in layers]


def sections(times: float) -> list[int]:
    """Return the number of channels of each section of `resnet`. `times` multiplies the published numbers."""
    return [max(1, round(channels * times)) for channels in IMPALA]


def num_features(kind: Kind, image: Image, times: float) -> int:
    """Return the number of features of a torso: channels x height x width of the last layer's output."""
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
