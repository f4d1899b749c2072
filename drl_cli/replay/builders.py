"""From environment steps to the rows of a replay table, in the worker."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import numpy as np

from drl_cli.types import Array, Column, Columns, Schema, State, nested, num_rows, within

Prioritize = Callable[[Columns], Array]
"""Computes the initial priorities `[rows]` of rows `[rows, ...]`."""


class Builder(Protocol):
    """Takes steps, gives rows."""

    def append(self, step: Columns) -> None:
        """Add one step of all environments: obs, action, reward, next_obs, terminated, truncated, ... `[E, ...]`.

        Where its column `valid` is False an environment took none: there is no row for it, and what came before it is
        as if the episode had been truncated there. `valid` is in no row.
        """

    def take(self) -> Columns:
        """All rows that are complete now, `[rows, ...]`; fresh arrays."""

    @property
    def open_rows(self) -> int:
        """Steps appended that no row taken has as its own."""

    def state(self) -> State:
        """What is still open, right after a `take`."""

    def load_state(self, state: State) -> None:
        """Go on from `state()`; its arrays may be read-only."""


class NStepBuilder:
    """Turns steps of E environments into n-step transitions: exactly one row per environment step.

    A row covers the steps from its own up to n of them or up to the episode's end, whichever comes first:
    reward = sum_j gamma^j r_j (scaled), next_obs = the observation after the last of them, discount = gamma^length,
    0 only if it terminated. `terminated` and `truncated` are those of the last step. Rows whose window is still open
    wait for the next block; within an environment rows keep the order of time. A window that is open when its
    environment fails ends before the step that is not `valid`, as truncated.
    """

    def __init__(self, n_step: int, gamma: float, reward_scale: float = 1.0) -> None:
        self.n_step, self.gamma, self.reward_scale = n_step, gamma, reward_scale
        self._steps: list[Columns] = []
        self._emitted: list[Array] = []

    def append(self, step: Columns) -> None:
        """Add one step of all environments: obs, action, reward, ..., terminated, truncated, valid, ... `[E, ...]`.

        The arrays are kept, not copied.
        """
        self._steps.append(step)
        self._emitted.append(~step["valid"])

    def take(self) -> Columns:
        """All rows that are complete now, `[rows, ...]`; fresh arrays."""
        steps = {name: np.concatenate([step[name] for step in self._steps]) for name in self._steps[0]}
        valid = steps["valid"].reshape(len(self._steps), -1)
        rewards = steps["reward"].reshape(valid.shape) * np.float32(self.reward_scale)
        ended = (steps["terminated"] | steps["truncated"]).reshape(valid.shape) | ~valid
        broken = np.zeros_like(ended)
        broken[:-1] = ~ended[:-1] & ~valid[1:]
        ended |= broken
        total = np.zeros_like(rewards)
        length = np.zeros(rewards.shape, np.int64)
        is_open = np.ones(rewards.shape, np.bool_)
        for k in range(min(self.n_step, len(rewards))):
            starts = len(rewards) - k
            total[:starts] += np.float32(self.gamma**k) * rewards[k:] * is_open[:starts]
            length[:starts] += is_open[:starts]
            is_open[:starts] &= ~ended[k:]
        complete = ~is_open | (length == self.n_step)
        first = (complete.ravel() & ~np.concatenate(self._emitted)).nonzero()[0]  # of the row's steps, in `steps`
        length = length.ravel().take(first)
        last = first + (length - 1) * valid.shape[1]
        rows = {
            name: column.take(last if name.partition(".")[0] == "next_obs" else first, 0)
            for name, column in steps.items()
            if name not in ("reward", "terminated", "truncated", "valid")
        }
        terminated = steps["terminated"].take(last)
        rows |= {
            "reward": total.ravel().take(first),
            "discount": np.where(terminated, 0.0, (self.gamma ** np.arange(self.n_step + 1))[length]).astype(
                np.float32
            ),
            "terminated": terminated,
            "truncated": steps["truncated"].take(last) | (broken.ravel().take(last) & (length < self.n_step)),
        }
        keep = max(0, len(self._steps) - (self.n_step - 1))
        self._steps, self._emitted = self._steps[keep:], list(complete[keep:])
        return rows

    @property
    def open_rows(self) -> int:
        """Steps appended whose row is not complete yet."""
        return int(sum((~emitted).sum() for emitted in self._emitted))

    def state(self) -> State:
        return nested("steps", stacked([{**s, "emitted": e} for s, e in zip(self._steps, self._emitted, strict=True)]))

    def load_state(self, state: State) -> None:
        self._steps = unstacked(within(state, "steps"))
        self._emitted = [step.pop("emitted") for step in self._steps]


class RolloutBuilder:
    """Turns steps of E environments into rollouts: one row per environment step, complete at once, in order of time.

    Rows are sorted by environment (all of the first one's, then the second's, ...). `next_obs` is the true final
    observation where an episode ended, discount = gamma, 0 only where it terminated. `cut` is True where the next row
    is not the next step of the same episode: at an episode's end, before a step that is not `valid`, and in each
    environment's last row of a block.
    """

    extra_columns: ClassVar[Schema] = {"cut": Column((), "bool")}

    def __init__(self, gamma: float, reward_scale: float = 1.0) -> None:
        self.gamma, self.reward_scale = gamma, reward_scale
        self._steps: list[Columns] = []

    def append(self, step: Columns) -> None:
        """Add one step of all environments: obs, action, reward, ..., terminated, truncated, valid, ... `[E, ...]`.

        The arrays are kept, not copied.
        """
        self._steps.append(step)

    def take(self) -> Columns:
        """All rows since the last take, `[rows, ...]`; fresh arrays."""
        steps, self._steps = self._steps, []
        cut = np.stack([step["terminated"] | step["truncated"] for step in steps], 1)
        valid = np.stack([step["valid"] for step in steps], 1)
        cut[:, :-1] |= ~valid[:, 1:]
        cut[:, -1] = True
        is_row = slice(None) if valid.all() else valid.ravel()
        rows = {
            name: np.concatenate([*np.stack([step[name] for step in steps], 1)])[is_row]
            for name in steps[0]
            if name != "valid"
        }
        rows["reward"] *= np.float32(self.reward_scale)
        discount = np.where(rows["terminated"], 0.0, self.gamma).astype(np.float32)
        return rows | {"discount": discount, "cut": cut.ravel()[is_row]}

    @property
    def open_rows(self) -> int:
        """None: a row is complete with its step."""
        return 0

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        self._steps = []


class PriorityBuilder:
    """Wraps a builder and adds the column `priority`, the initial priority of each row."""

    def __init__(self, builder: Builder, prioritize: Prioritize) -> None:
        self.builder, self.prioritize = builder, prioritize

    def append(self, step: Columns) -> None:
        self.builder.append(step)

    def take(self) -> Columns:
        rows = self.builder.take()
        return {**rows, "priority": self.prioritize(rows)}

    @property
    def open_rows(self) -> int:
        return self.builder.open_rows

    def state(self) -> State:
        return self.builder.state()

    def load_state(self, state: State) -> None:
        self.builder.load_state(state)


def stacked(steps: Sequence[Columns]) -> State:
    """Steps of all environments as arrays `[steps, E, ...]`; of none, nothing."""
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]} if steps else {}


def unstacked(state: State) -> list[Columns]:
    """The inverse of `stacked`."""
    return [{name: column[i] for name, column in state.items()} for i in range(num_rows(state))] if state else []
