"""Area resizing of images: each new pixel is the mean of the old pixels that it covers."""

import math
from collections.abc import Sequence

import numpy as np

from drl_cli.types import Array


class AreaResize:
    """Resizes grey images uint8 `[height, width]` to `[size, size]`. Height and width must not be multiples of `size`.

    The result has the same bytes as OpenCV's `resize` with INTER_AREA, because both sum in the same order (along rows
    first). This class is as fast as OpenCV on one thread, and avoids the 150 MB of memory that OpenCV needs.
    """

    def __init__(self, shape: Sequence[int], size: int) -> None:
        height, width = shape
        self._rows, self._columns = _parts(height, size), _parts(width, size)

    def __call__(self, image: Array) -> Array:
        across = _sum(image.T.astype(np.float32, order="C"), self._columns)  # transposed, because taking rows is faster
        small = _sum(np.ascontiguousarray(across.T), self._rows)
        return np.rint(small, out=small).astype(np.uint8)


Parts = list[tuple[Array, Array]]
"""Pairs of old row indices `[size]` and weights `[size, 1]`. The weighted sum over all pairs gives the new rows."""


def _sum(image: Array, parts: Parts) -> Array:
    (index, weight), *rest = parts
    total: Array = image.take(index, 0)
    total *= weight
    for index, weight in rest:
        part = image.take(index, 0)
        part *= weight
        total += part
    return total


def _parts(length: int, size: int) -> Parts:
    scale = length / size
    covered: list[list[tuple[int, float]]] = []
    for i in range(size):
        start, stop = i * scale, min((i + 1) * scale, length)
        first, last = math.ceil(start - 1e-9), math.floor(stop + 1e-9)
        parts = [(first - 1, first - start)] if first - start > 1e-3 else []
        parts += [(j, 1.0) for j in range(first, last)]
        parts += [(last, stop - last)] if stop - last > 1e-3 else []
        covered.append([(j, share / scale) for j, share in parts])
    most = max(map(len, covered))
    padded = [parts + [(0, 0.0)] * (most - len(parts)) for parts in covered]
    return [
        (np.array([parts[k][0] for parts in padded]), np.array([[parts[k][1]] for parts in padded], np.float32))
        for k in range(most)
    ]
