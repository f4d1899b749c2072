"""Running mean and variance that can be merged: what several processes have seen, as if one had seen it all."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunningMoments:
    """Of `count` rows `[D]`: their mean, and the sum of squared deviations from it.

    A value, never written to: merging gives a new one, so that it can be sent while its owner goes on.
    """

    count: int
    mean: Vector
    squares: Vector

    @classmethod
    def empty(cls, size: int) -> "RunningMoments":
        """Of no rows yet."""
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, rows: Vector) -> "RunningMoments":
        """Of rows `[N, D]`."""
        if len(rows) == 0:
            return cls.empty(rows.shape[1])
        mean = rows.mean(0)
        return cls(len(rows), mean, np.square(rows - mean).sum(0))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """Of both their rows (Chan, Golub & LeVeque 1979, "Updating formulae ... for computing sample variances")."""
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + np.square(delta) * (self.count * other.count / count)
        return RunningMoments(count, mean, squares)

    def packed(self) -> Vector:
        """All of it in one vector: count, mean, squares."""
        return np.concatenate([[float(self.count)], self.mean, self.squares])

    @classmethod
    def unpacked(cls, vector: Vector) -> "RunningMoments":
        """The inverse of `packed`."""
        mean, squares = vector[1:].reshape(2, -1).copy()
        return cls(int(vector[0]), mean, squares)

    @property
    def variance(self) -> Vector:
        """Of the rows seen (divided by their number), zero without any."""
        return self.squares / max(1, self.count)
