"""Running mean and variance. Results of several processes can be merged."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunningMoments:
    """The mean `[D]` of `count` rows, and the sum `[D]` of the rows' squared deviations from the mean.

    No method changes the arrays in place.
    """

    count: int
    mean: Vector
    squares: Vector

    @classmethod
    def empty(cls, size: int) -> "RunningMoments":
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, rows: Vector) -> "RunningMoments":
        if len(rows) == 0:
            return cls.empty(rows.shape[1])
        mean = rows.mean(0)
        return cls(len(rows), mean, np.square(rows - mean).sum(0))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """Return the moments of both sets of rows together (Chan, Golub & LeVeque 1979, "Updating formulae ...")."""
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + np.square(delta) * (self.count * other.count / count)
        return RunningMoments(count, mean, squares)

    def packed(self) -> Vector:
        return np.concatenate([[float(self.count)], self.mean, self.squares])

    @classmethod
    def unpacked(cls, vector: Vector) -> "RunningMoments":
        mean, squares = vector[1:].reshape(2, -1).copy()
        return cls(int(vector[0]), mean, squares)

    @property
    def variance(self) -> Vector:
        return self.squares / max(1, self.count)
