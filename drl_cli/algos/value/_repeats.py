"""Repeats: random actions that are repeated for several steps."""

import numpy as np

from drl_cli.types import Array, PreviousStep, State


class Repeats:
    """Random choices that are repeated for n steps, with a probability in proportion to 1 / n^2, at most `most` steps.

    A single random choice is undone by the greedy choices after it. A repeated choice reaches further (Dabney et al.
    2021, "Temporally-Extended epsilon-Greedy Exploration", ICLR). `choice` `[E]` is the choice that each of E
    environments repeats, for `left` `[E]` more steps.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        weights = np.arange(1, most + 1) ** -2.0
        self.probs: Array = weights / weights.sum()
        self.choice: Array = np.zeros(0, np.int64)
        self.left: Array = np.zeros(0, np.int64)

    def start(self, is_random: Array, choice: Array, last: PreviousStep | None, rng: np.random.Generator) -> Array:
        """Start to repeat `choice` `[E]` where `is_random` `[E]` and nothing is repeated. Return where to repeat `[E]`.

        Where `last.begins` says that an episode begins, the repetition ends. If `last` is None, no episode begins.
        """
        if len(self.left) != len(choice):  # the first call, or another number of environments than before
            self.choice, self.left = np.zeros_like(choice), np.zeros(len(choice), np.int64)
        elif last is not None:
            self.left = np.where(last.begins, 0, self.left)
        starts = is_random & (self.left == 0)
        lengths = 1 + rng.choice(self.most, len(choice), p=self.probs)
        self.choice = np.where(starts, choice, self.choice)
        left = np.where(starts, lengths, self.left)
        self.left = np.maximum(left - 1, 0)
        return np.asarray(left > 0)

    def state(self) -> State:
        return {"repeated": self.choice.copy(), "left": self.left.copy()}

    def load_state(self, state: State) -> None:
        self.choice, self.left = state["repeated"].copy(), state["left"].copy()
