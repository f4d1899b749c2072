"""Functions that compute with numpy arrays and with tensors alike, for distributions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.utils.lazy import torch

LOG_2 = float(np.log(2.0))


def atanh(action: Any) -> Any:
    """Return the inverse of tanh. Actions of -1 and 1 are first replaced by the nearest float32 inside (-1, 1)."""
    largest = 1.0 - 2.0**-24  # the largest float32 below 1
    action = clamp(action, -largest, largest)
    return np.arctanh(action) if isinstance(action, np.ndarray) else action.atanh()


def log_slope(u: Any) -> Any:
    """Return log(1 - tanh(u)^2), the logarithm of the slope of tanh, summed over the A dimensions: `[B]`.

    `u` is `[B, A]`. The code uses the equal form 2 (log 2 - |u| - log(1 + exp(-2 |u|))), which does not underflow.
    """
    size = abs(u)
    return (2.0 * (LOG_2 - size - log1p(exp(-2.0 * size)))).sum(-1)


def gumbel(random: Any, like: Any) -> Any:
    """Return standard Gumbel noise in the shape of `like`. `random` is a generator, or uniform noise in [0, 1)."""
    if isinstance(random, np.random.Generator):
        noise = random.gumbel(size=like.shape)
        return noise if isinstance(like, np.ndarray) else torch.from_numpy(noise).to(like.device)
    # With uniform noise u, -log(-log(1 - u)) is Gumbel noise. It would be infinite if u is 0, or rounded to 1.
    exponential = -log1p(-uniform(random, like))
    return -log(clamp(exponential, 1e-37, 100.0))


def choices(rng: np.random.Generator, size: int, rows: int) -> Any:
    """Return random integers in [0, size), int64 `[rows]`."""
    if rows > 1:
        return rng.integers(size, size=rows)
    return np.array([rng.integers(size)])  # the same number, but numpy needs 4 us more to return an array


def uniform(random: Any, like: Any) -> Any:
    """Return uniform noise in [0, 1) in the shape of `like`: `random` itself if it is noise, or drawn by it."""
    return random if hasattr(random, "shape") else torch.rand(like.shape, generator=random).to(like)


def normal(random: Any, like: Any) -> Any:
    """Return standard normal noise in the shape of `like`: `random` itself if it is noise, or drawn by it."""
    if isinstance(random, np.random.Generator):
        noise = random.standard_normal(like.shape, np.float32)
        return noise if isinstance(like, np.ndarray) else torch.from_numpy(noise).to(like)
    return random if hasattr(random, "shape") else torch.randn(like.shape, generator=random).to(like)


def expand(x: Any, like: Any) -> Any:
    """Repeat `x` in the shape of `like`, as a view."""
    return np.broadcast_to(x, like.shape) if isinstance(x, np.ndarray) else x.expand_as(like)


def exp(x: Any) -> Any:
    """Return e^x."""
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()


def log(x: Any) -> Any:
    """Return the natural logarithm."""
    return np.log(x) if isinstance(x, np.ndarray) else x.log()


def log1p(x: Any) -> Any:
    """Return log(1 + x)."""
    return np.log1p(x) if isinstance(x, np.ndarray) else x.log1p()


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    return np.tanh(x) if isinstance(x, np.ndarray) else x.tanh()


def clamp(x: Any, least: float, most: float) -> Any:
    """Return the values between `least` and `most`."""
    if isinstance(x, np.ndarray):
        return np.minimum(np.maximum(x, least), most)  # faster than `np.clip`
    return x.clamp(least, most)


def log_softmax(x: Any) -> Any:
    """Return log(softmax(x)) along the last axis."""
    if isinstance(x, np.ndarray):
        return x - np.logaddexp.reduce(x, -1, keepdims=True)  # log(sum(exp(x)))
    return x.log_softmax(-1)


def log_sum_exp(x: Any) -> Any:
    """Return log(sum(exp(x))) along the last axis."""
    return np.logaddexp.reduce(x, -1) if isinstance(x, np.ndarray) else x.logsumexp(-1)


def split(x: Any, sizes: Sequence[int]) -> Any:
    """Split the last axis into parts of these sizes."""
    if isinstance(x, np.ndarray):
        starts = np.cumsum(sizes)[:-1]  # of all parts except the first
        return np.split(x, starts, -1)
    return torch.split(x, list(sizes), -1)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return `x` where the condition holds, otherwise `y`."""
    return np.where(condition, x, y) if isinstance(condition, np.ndarray) else torch.where(condition, x, y)


def part_at(x: Any, index: Any) -> Any:
    """Return the part `[B, A]` of `x` `[B, K, A]` with an index `[B]` in each row."""
    index = index[..., None, None]
    if isinstance(x, np.ndarray):
        return np.take_along_axis(x, index, -2)[..., 0, :]
    return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1])).squeeze(-2)


def stack(parts: list[Any]) -> Any:
    """Join the parts along a new last axis."""
    return np.stack(parts, -1) if isinstance(parts[0], np.ndarray) else torch.stack(parts, -1)
