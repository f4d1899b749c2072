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


@dataclass(frozen=True, kw_only=True)
class Image:
    """The layout of an image observation, or of a stack of images.

    The shape of an image is (height, width), (height, width, channels) or (channels, height, width). The channels come
    first if the first axis is shorter than both other axes. A stack of images has one more axis in front, of length
    `frames`. The network treats the frames as more channels.
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
        """The shape `[frames, ...]` of an observation, and `axes`, an order of axes.

        `obs.reshape(n, *shape).permute(axes)` turns a batch into `[n, frames, channels, height, width]`.
        """
        if self.channels_first:
            return (self.frames, self.channels, self.height, self.width), (0, 1, 2, 3, 4)
        return (self.frames, self.height, self.width, self.channels), (0, 1, 4, 2, 3)


def as_image(column: Column) -> Image | None:
    """Return the image layout of an observation, or of one entry of a Dict or Tuple; return None if it is no image.

    An array with three or four axes is an image. An array with two axes is an image if it has bytes or booleans. Height
    and width have to be at least LEAST_SIDE pixels. Discrete values (`column.choices`) are no image.
    """
    shape, frames = column.shape, 1
    fewest_axes = 2 if column.dtype in ("uint8", "bool") else 3
    if column.choices or not fewest_axes <= len(shape) <= 4:
        return None
    if len(shape) == 4:
        frames, shape = shape[0], shape[1:]
    if len(shape) == 2:
        shape = (*shape, 1)
    channels_first = shape[0] < min(shape[1:])
    channels, height, width = shape if channels_first else (shape[2], *shape[:2])
    if min(height, width) < LEAST_SIDE:
        return None
    return Image(height=height, width=width, channels=channels, frames=frames, channels_first=channels_first)


def is_large(image: Image) -> bool:
    """Return whether the image is large enough for the convolutions NATURE."""
    return min(image.height, image.width) >= NATURE_SIDE


def convolutions(image: Image, times: float) -> list[tuple[int, int, int]]:
    """Return (channels, kernel, stride) of each layer of the torso `cnn`. `times` multiplies the published channels."""
    layers = NATURE if is_large(image) else SMALL
    return [(max(1, round(channels * times)), kernel, stride) for channels, kernel, stride in layers]


def sections(times: float) -> list[int]:
    """Return the number of channels of each section of the torso `resnet`. `times` multiplies the published numbers."""
    return [max(1, round(channels * times)) for channels in IMPALA]


def num_features(kind: Kind, image: Image, times: float) -> int:
    """Return the number of features of a torso for this image: channels x height x width of the last layer's output.

    `times` multiplies the published channels.
    """
    height, width = image.height, image.width
    if kind == "resnet":
        channels = sections(times)[-1]
        for _ in IMPALA:  # each section has a pooling layer with stride 2 and padding
            height, width = (height + 1) // 2, (width + 1) // 2
    else:
        layers = convolutions(image, times)
        channels = layers[-1][0]
        for _, kernel, stride in layers:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return channels * height * width
