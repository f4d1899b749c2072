"""Functions of numpy arrays that generated programs call. They import no torch."""

from collections.abc import Sequence

import numpy as np

from drl_cli.types import Array


def layer_norm(x: Array, size: Sequence[int], weight: Array | None, bias: Array | None, eps: float) -> Array:
    """Normalise the last axes, whose shape is `size`, to mean 0 and variance 1; then multiply and add."""
    axes = tuple(range(-len(size), 0))
    x = x - x.mean(axes, keepdims=True)
    scale = 1.0 / np.sqrt(np.square(x).mean(axes, keepdims=True) + np.float32(eps))
    x *= scale if weight is None else weight * scale
    if bias is not None:
        x += bias
    return x


def softmax(x: Array, dim: int) -> Array:
    """Return exp(x), divided by its sum along an axis."""
    x = np.exp(x - x.max(dim, keepdims=True))
    x /= x.sum(dim, keepdims=True)
    return x


def log_softmax(x: Array, dim: int) -> Array:
    """Return the logarithm of `softmax`."""
    x = x - x.max(dim, keepdims=True)
    x -= np.log(np.exp(x).sum(dim, keepdims=True))
    return x


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))  # which does not overflow


def elu(x: Array, alpha: float) -> Array:
    """Return x, or alpha (exp(x) - 1) where x < 0."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def softplus(x: Array, beta: float, threshold: float) -> Array:
    """Return log(1 + exp(beta x)) / beta, or x where beta x > threshold."""
    return np.where(beta * x > threshold, x, np.logaddexp(beta * x, np.float32(0.0)) / beta)


def scattered(x: Array, dim: int, index: Array, source: Array | float) -> Array:
    """Return a copy of `x` with the values `source` at `index` along the axis `dim`."""
    x = x.copy()
    np.put_along_axis(x, index, source, dim)
    return x


def convolution(x: Array, weight: Array, bias: Array | None, stride: Sequence[int], padding: Sequence[int]) -> Array:
    """Return the convolution `[n, out, h, w]` of images `[n, in, H, W]` with the weights `[out, in, kh, kw]`."""
    (sh, sw), (ph, pw) = stride, padding
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw))) if ph or pw else x
    seen = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))[:, :, ::sh, ::sw]
    n, _, h, w, _, _ = seen.shape
    columns = seen.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, -1)
    out = columns @ weight.reshape(len(weight), -1).T
    if bias is not None:
        out += bias
    return out.reshape(n, h, w, -1).transpose(0, 3, 1, 2)


def max_pool(x: Array, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Array:
    """Return the largest value of each window of images `[n, channels, H, W]`."""
    (sh, sw), (ph, pw) = stride, padding
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=-np.inf) if ph or pw else x
    largest: Array = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))[:, :, ::sh, ::sw].max((-2, -1))
    return largest


def clamp(x: Array, low: Array | float | None, high: Array | float | None) -> Array:
    """Return new values between `low` and `high`. Either may be None."""
    out = x if low is None else np.maximum(x, low)
    return out if high is None else np.minimum(out, high)


KERNELS = {
    f.__name__: f
    for f in (layer_norm, softmax, log_softmax, sigmoid, elu, softplus, scattered, convolution, max_pool, clamp)
}
