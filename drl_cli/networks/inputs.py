"""What networks see of observations: the flat inputs of an MLP, in numpy and in torch, and the layout of images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drl_cli.types import MASK, Array, Column, Obs, ObsSpec, leaves
from drl_cli.utils.lazy import Tensor, torch


def visible(obs: ObsSpec) -> ObsSpec:
    """Return the spec of what networks see of an observation: everything except the legal-action mask."""
    return obs if isinstance(obs, Column) else {path: part for path, part in obs.items() if path != MASK}


def width(column: Column) -> int:
    """Return the number of an MLP's inputs for a column. A choice among n values needs n inputs (one-hot)."""
    return sum(column.choices) or math.prod(column.shape)


class Inputs:
    """Turns observations `[n, ...]` into float32 inputs `[n, size]`, with bit-equal results in numpy and torch.

    Booleans become 0 and 1, choices become one-hot vectors, bytes are scaled to [0, 1], and images are flattened. The
    entries of a Dict or Tuple are joined. The legal-action mask is left out.
    """

    def __init__(self, obs: ObsSpec) -> None:
        self.parts = leaves(visible(obs))  # by path; an observation without parts has the path ""
        self.size = sum(width(column) for column in self.parts.values())

    def array(self, obs: Obs) -> Array:
        """Return the inputs `[n, size]` as an array, which may be a view of `obs`."""
        if isinstance(obs, np.ndarray):
            is_plain = obs.ndim == 2 and obs.dtype == np.float32  # nothing to convert
            return obs if is_plain else _array(obs, self.parts[""])
        return np.concatenate([_array(obs[path], column) for path, column in self.parts.items()], 1)

    def tensor(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the inputs `[n, size]` as a tensor, which may be a view of `obs`."""
        if isinstance(obs, torch.Tensor):
            is_plain = obs.ndim == 2 and obs.dtype == torch.float32  # nothing to convert
            return obs if is_plain else _tensor(obs, self.parts[""])
        return torch.cat([_tensor(obs[path], column) for path, column in self.parts.items()], 1)


def _array(obs: Array, column: Column) -> Array:
    if column.choices:
        one_hot = np.zeros((len(obs), width(column)), np.float32)
        np.put_along_axis(one_hot, obs.reshape(len(obs), -1) + _first_inputs(column), 1.0, 1)
        return one_hot
    x = obs.reshape(len(obs), math.prod(obs.shape[1:])).astype(np.float32, copy=False)
    return x * np.float32(1 / 255) if obs.dtype == np.uint8 else x


def _tensor(obs: Tensor, column: Column) -> Tensor:
    if column.choices:
        first = torch.from_numpy(_first_inputs(column)).to(obs.device)
        # obs.shape[0] in place of len(obs), which would be a constant in an exported policy
        one_hot = torch.zeros(obs.shape[0], width(column), device=obs.device)
        return one_hot.scatter_(1, obs.reshape(obs.shape[0], -1) + first, 1.0)
    x = obs.reshape(obs.shape[0], width(column)).float()  # flatten(1) needs two axes; a single number has one
    return x.mul_(1 / 255) if obs.dtype == torch.uint8 else x


def _first_inputs(column: Column) -> Array:
    """Return the index of the first one-hot input of each choice, for k choices `[k]`."""
    return np.cumsum((0, *column.choices[:-1]))


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
