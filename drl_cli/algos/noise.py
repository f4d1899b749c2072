"""Exploration that is correlated in time: the function `noise` of an algorithm's file returns an object of these.

`draw` returns noise for a distribution's `sample`. `parts` is the state, which checkpoints save.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from drl_cli.types import Array, PreviousStep

TIMES = 0.5 * 2.0 ** np.arange(8)
"""The time constants [steps] of the processes in PinkNoise: 0.5, 1, 2, ... 64."""
DECAY = np.exp(-1 / TIMES).astype(np.float32)[:, None, None]
FRESH = np.sqrt(1 - DECAY**2)


class Noise(ABC):
    """Noise of E environments. `parts` `[..., E, A]` has what the next step's noise depends on."""

    parts: Array

    @abstractmethod
    def draw(self, rows: int, last: PreviousStep | None, rng: np.random.Generator) -> Any:
        """Draw the noise `[rows, A]` of the next step. It starts again where `last.begins` says that an episode begins.

        If `last` is None, no episode begins. The result is the argument of a distribution's `sample`.
        """


class PinkNoise(Noise):
    """Standard normal noise whose power falls with the frequency f about as 1 / f.

    White noise averages to nothing within a few steps, while pink noise also pushes in one direction for long
    (Eberhard et al. 2023, "Pink Noise Is All You Need", ICLR). This noise is the scaled sum of autoregressive
    processes with the time constants TIMES. `parts` `[8, E, A]` has the processes of E environments.
    """

    def __init__(self, size: int) -> None:
        self.parts: Array = np.zeros((len(TIMES), 0, size), np.float32)

    def draw(self, rows: int, last: PreviousStep | None, rng: np.random.Generator) -> Array:
        white = rng.standard_normal((len(TIMES), rows, self.parts.shape[2]), np.float32)
        if self.parts.shape[1] != rows:  # the first call, or another number of environments than before
            self.parts = white
        else:
            self.parts = np.where(_begins(rows, last), white, DECAY * self.parts + FRESH * white)
        return np.asarray(self.parts.sum(0) / np.float32(len(TIMES) ** 0.5))


class OUNoise(Noise):
    """Ornstein-Uhlenbeck noise x: x <- x - theta x + N(0, 1), from 0 at the start of an episode.

    It is correlated in time (Lillicrap et al. 2016, section 7; Uhlenbeck & Ornstein 1930). A distribution multiplies it
    by the standard deviation. `parts` `[E, A]` is the present noise of E environments.
    """

    def __init__(self, size: int, theta: float) -> None:
        self.parts: Array = np.zeros((0, size), np.float32)
        self.theta = np.float32(theta)

    def draw(self, rows: int, last: PreviousStep | None, rng: np.random.Generator) -> Array:
        white = rng.standard_normal((rows, self.parts.shape[1]), np.float32)
        if len(self.parts) != rows:  # the first call, or another number of environments than before
            self.parts = np.zeros_like(white)
        before = np.where(_begins(rows, last), np.float32(0), self.parts)
        self.parts = np.asarray(before - self.theta * before + white, np.float32)
        return self.parts


class Repeats(Noise):
    """Random actions of EpsilonGreedy that are repeated: for n steps with a probability in proportion to 1 / n^2.

    A single random action is undone by the greedy actions after it. A repeated action reaches further (Dabney et al.
    2021, "Temporally-Extended epsilon-Greedy Exploration", ICLR). The largest n is `most`. `parts` `[2, E]` has the
    action that each of E environments repeats, and the number of steps for which it is still repeated.
    """

    rng: np.random.Generator

    def __init__(self, most: int) -> None:
        self.most = most
        weights = np.arange(1, most + 1) ** -2.0
        self.probs: Array = weights / weights.sum()
        self.parts = np.zeros((2, 0), np.int64)

    def draw(self, rows: int, last: PreviousStep | None, rng: np.random.Generator) -> "Repeats":
        """End the repetitions of episodes that have ended, and return self, which EpsilonGreedy needs."""
        self.rng = rng
        if self.parts.shape[1] != rows:  # the first call, or another number of environments than before
            self.parts = np.zeros((2, rows), np.int64)
        elif last is not None:
            self.parts[1] = np.where(last.begins, 0, self.parts[1])
        return self

    def start(self, is_random: Array, action: Array) -> tuple[Array, Array]:
        """Start to repeat `action` `[E]` where `is_random` `[E]` and nothing is repeated.

        Return where an action is repeated, and the repeated actions, `[E]` each.
        """
        repeated, left = self.parts
        starts = is_random & (left == 0)
        lengths = 1 + self.rng.choice(self.most, len(action), p=self.probs)
        repeated, left = np.where(starts, action, repeated), np.where(starts, lengths, left)
        self.parts = np.stack([repeated, np.maximum(left - 1, 0)])
        return left > 0, repeated


def _begins(rows: int, last: PreviousStep | None) -> Array:
    return np.zeros((rows, 1), np.bool_) if last is None else np.asarray(last.begins)[:, None]
