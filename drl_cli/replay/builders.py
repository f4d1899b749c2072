"""Builders turn environment steps into rows of a replay table. They run in the worker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from drl_cli.types import Array, Column, Columns, Schema, State, nested, num_rows, within

RETURN, NEXT_ACTION = "mc_return", "next_action"
"""Columns that depend on later steps: the discounted return from a row's step to the end of its episode (Monte-Carlo
return), and the action n_step steps later, or the last one of the episode."""

Prioritize = Callable[[Columns], Array]
"""A function that computes the initial priorities `[rows]` of rows `[rows, ...]`."""


class Builder(ABC):
    """Builds rows from the steps of E environments.

    If the column `valid` of a step is False, the environment took no step. The builder then makes no row for this step,
    and treats the previous step as truncated. Rows of transitions have no column `valid`.
    """

    prioritize: Prioritize | None = None

    def _rating(self, rows: Columns, shape: tuple[int, ...] = ()) -> Columns:
        """Return the column `priority` `[rows, *shape]`, or {} without `prioritize`. It is not called without rows."""
        if self.prioritize is None:
            return {}
        return {"priority": self.prioritize(rows) if num_rows(rows) else np.zeros((0, *shape), np.float32)}

    def __init__(self, gamma: float, reward_scale: float = 1.0) -> None:
        self.gamma, self.reward_scale = gamma, reward_scale
        self._steps: list[Columns] = []

    def append(self, step: Columns) -> None:
        """Add a step `[E, ...]` with obs, action, reward, next_obs, terminated, truncated, valid, ...

        The builder keeps the arrays without copying them.
        """
        self._steps.append(step)

    @abstractmethod
    def take(self) -> Columns:
        """Return all complete rows that were not returned yet, as new arrays `[rows, ...]`."""

    @property
    @abstractmethod
    def open_rows(self) -> int:
        """Number of steps for which `take` has not returned a row yet."""

    @abstractmethod
    def state(self) -> State:
        """Return the steps of all rows that are not complete. Call this directly after `take`."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Restore `state()`. The arrays of the state may be read-only."""


class NStepBuilder(Builder):
    """Builds n-step transitions, exactly one row per step.

    A row's window contains n steps, or fewer if the episode ends. The reward is `reward_scale` times the sum of
    gamma^j r_j over the window. `next_obs`, `terminated` and `truncated` come from the last step of the window. The
    discount is gamma^length, or 0 if the episode terminated. A row is returned once its window is complete. The rows of
    each environment are in order of time. With `prioritize`, rows have a column `priority`. With `returns_steps`, the
    rows are single steps, and only their priorities come from the n-step transitions.
    """

    def __init__(
        self,
        n_step: int,
        gamma: float,
        reward_scale: float = 1.0,
        prioritize: Prioritize | None = None,
        returns_steps: bool = False,
    ) -> None:
        super().__init__(gamma, reward_scale)
        self.n_step, self.prioritize, self.returns_steps = n_step, prioritize, returns_steps
        self._emitted: list[Array] = []

    def append(self, step: Columns) -> None:
        self._steps.append(step)
        self._emitted.append(~step["valid"])

    def take(self) -> Columns:
        steps = {name: np.concatenate([step[name] for step in self._steps]) for name in self._steps[0]}
        keep = max(0, len(self._steps) - (self.n_step - 1))
        valid = steps["valid"].reshape(len(self._steps), -1)
        self._steps = self._steps[keep:]  # before the rows need memory
        rewards = steps["reward"].reshape(valid.shape) * np.float32(self.reward_scale)
        ended = (steps["terminated"] | steps["truncated"]).reshape(valid.shape) | ~valid
        broken = np.zeros_like(ended)  # whether the environment failed in the next step
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
        first = (complete.ravel() & ~np.concatenate(self._emitted)).nonzero()[0]  # indices into `steps`
        length = length.ravel().take(first)
        last = first + (length - 1) * valid.shape[1]
        rows = {
            name: column.take(last if name.partition(".")[0] == "next_obs" else first, 0)
            for name, column in steps.items()
            if name not in ("reward", "terminated", "truncated", "valid")
        }
        terminated, powers = steps["terminated"].take(last), self.gamma ** np.arange(self.n_step + 1)
        rows |= {
            "reward": total.ravel().take(first),
            "discount": np.where(terminated, 0.0, powers[length]).astype(np.float32),
            "terminated": terminated,
            "truncated": steps["truncated"].take(last) | (broken.ravel().take(last) & (length < self.n_step)),
        }
        self._emitted = list(complete[keep:])
        rating = {} if self.prioritize is None else self._rating(rows)
        if self.returns_steps:
            rows |= {name: steps[name].take(first, 0) for name in rows.keys() & steps.keys()}
            rows["reward"] = rewards.ravel().take(first)
            rows["discount"] = np.where(rows["terminated"], 0.0, self.gamma).astype(np.float32)
        return rows | rating

    @property
    def open_rows(self) -> int:
        return int(sum((~emitted).sum() for emitted in self._emitted))

    def state(self) -> State:
        return nested("steps", stacked([{**s, "emitted": e} for s, e in zip(self._steps, self._emitted, strict=True)]))

    def load_state(self, state: State) -> None:
        self._steps = unstacked(within(state, "steps"))
        self._emitted = [step.pop("emitted") for step in self._steps]


class RolloutBuilder(Builder):
    """Builds rollouts. Each step becomes a row at once; the rows are sorted by environment, then by time.

    If an episode ended, `next_obs` is the true final observation. The discount is gamma, or 0 if the episode
    terminated. `cut` is True if the next row is not the next step of the same episode: at the end of an episode, before
    a step that is not `valid`, and in the last row of each environment in a block.
    """

    extra_columns: ClassVar[Schema] = {"cut": Column((), "bool")}
    open_rows = 0

    def take(self) -> Columns:
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

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        self._steps = []


class EpisodeBuilder(Builder):
    """Returns rows when their episode has ended, with the columns `names`, RETURN or NEXT_ACTION.

    `make` makes the builder of the rows, which gets one complete episode after another. After `most_steps` steps, an
    episode's steps are returned as if it were truncated there, because memory and tables are limited.
    """

    def __init__(
        self, make: Callable[[], Builder], most_steps: int, names: Sequence[str] = (RETURN,), n_step: int = 1
    ) -> None:
        inner = make()
        super().__init__(inner.gamma, inner.reward_scale)
        self.make, self.most_steps, self.prioritize = make, most_steps, inner.prioritize
        self.names, self.n_step = names, n_step
        self._first = np.zeros(1, np.int64)  # index of each environment's first open step; `[E]` after the first step
        self._parts: list[tuple[int, int, int]] = []  # environment, first step and end of each complete episode

    def append(self, step: Columns) -> None:
        super().append(step)
        stop, self._first = len(self._steps), np.broadcast_to(self._first, step["valid"].shape).copy()
        ended = step["terminated"] | step["truncated"] | ~step["valid"] | (stop - self._first >= self.most_steps)
        for env in ended.nonzero()[0].tolist():
            self._parts.append((env, int(self._first[env]), stop))
            self._first[env] = stop

    def take(self) -> Columns:
        builder, last = self.make(), self._steps[-1]
        builder.prioritize = self.prioritize
        end = {name: column[:1] for name, column in last.items()}
        end |= {"valid": np.zeros(1, np.bool_)} | self._later([end])[0]
        for env, first, stop in self._parts:
            steps = [{name: column[env : env + 1] for name, column in s.items()} for s in self._steps[first:stop]]
            for step, later in zip(steps, self._later(steps), strict=True):
                builder.append(step | later)
            builder.append(end)
        if not self._parts:
            builder.append(end)
        self._parts, kept = [], int(self._first.min())
        self._first -= kept
        del self._steps[:kept]
        return builder.take()

    def _later(self, steps: Sequence[Columns]) -> list[Columns]:
        """Return the columns `names` of all steps of an episode. Only its last step may be not `valid`."""
        found: list[Columns] = [{} for _ in steps]
        if RETURN in self.names:
            reward = np.concatenate([step["reward"] * step["valid"] for step in steps])
            sums = returns(self.reward_scale * reward, np.array([len(steps)]), self.gamma)
            for i, columns in enumerate(found):
                columns[RETURN] = sums[i : i + 1]
        if NEXT_ACTION in self.names:
            last = max(0, len(steps) - 1 - int(not steps[-1]["valid"][0]))
            for i, columns in enumerate(found):
                columns[NEXT_ACTION] = steps[min(i + self.n_step, last)]["action"]
        return found

    @property
    def open_rows(self) -> int:
        return int((len(self._steps) - self._first).sum())

    def state(self) -> State:
        return {"first": self._first.copy(), **nested("steps", stacked(self._steps))}

    def load_state(self, state: State) -> None:
        self._first, self._steps, self._parts = state["first"].copy(), unstacked(within(state, "steps")), []


def returns(reward: Array, ends: Array, gamma: float) -> Array:
    """Return the discounted returns from each step to the end of its episode, float32 `[steps]`."""
    sums, after, is_last = np.zeros(len(reward), np.float64), 0.0, np.zeros(len(reward), np.bool_)
    is_last[ends - 1] = True
    for step in range(len(reward) - 1, -1, -1):
        after = float(reward[step]) + (0.0 if is_last[step] else gamma * after)
        sums[step] = after
    return sums.astype(np.float32)


def stacked(steps: Sequence[Columns]) -> State:
    """Return the columns of the steps as arrays `[steps, E, ...]`; empty if there are no steps."""
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]} if steps else {}


def unstacked(state: State) -> list[Columns]:
    """Return the list of steps: the inverse of `stacked`."""
    return [{name: column[i] for name, column in state.items()} for i in range(num_rows(state))] if state else []
