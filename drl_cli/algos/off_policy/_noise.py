"""PinkNoise: exploration noise that is correlated in time."""

import numpy as np

from drl_cli.types import Array, PreviousStep

TIMES = 0.5 * 2.0 ** np.arange(8)
"""The time constants [steps] of the processes in PinkNoise: 0.5, 1, 2, ... 64."""
DECAY = np.exp(-1 / TIMES).astype(np.float32)[:, None, None]
FRESH = np.sqrt(1 - DECAY**2)


class PinkNoise:
    """Standard normal noise whose power falls with the frequency f about as 1 / f.

    White noise averages to nothing within a few steps, while pink noise also pushes in one direction for long
    (Eberhard et al. 2023, "Pink Noise Is All You Need", ICLR). This noise is the scaled sum of autoregressive
    processes with the time constants TIMES. `parts` `[8, E, A]` has the processes of E environments.
    """

    def __init__(self, size: int) -> None:
        self.parts: Array = np.zeros((len(TIMES), 0, size), np.float32)

    def draw(self, rows: int, last: PreviousStep | None, rng: np.random.Generator) -> Array:
        """Draw the noise `[rows, A]` of the next step. It starts again where `last.begins` says that an episode begins.

        If `last` is None, no episode begins.
        """
        white = rng.standard_normal((len(TIMES), rows, self.parts.shape[2]), np.float32)
        if self.parts.shape[1] != rows:  # the first call, or another number of environments than before
            self.parts = white
        else:
            begins = np.zeros(rows, np.bool_) if last is None else np.asarray(last.begins)
            self.parts = np.where(begins[:, None], white, DECAY * self.parts + FRESH * white)
        return np.asarray(self.parts.sum(0) / np.float32(len(TIMES) ** 0.5))
