"""Builders turn a worker's environment steps into rows of a replay table: transitions, rollouts or sequences."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]} if steps else {}


def unstacked(state: State) -> list[Columns]:
    return [{name: column[i] for name, column in state.items()} for i in range(num_rows(state))] if state else []


class SequenceBuilder(Builder):
    """Builds sequences `[rows, burn_in + seq_len, ...]`, each from one episode of one environment.

    The first `burn_in` steps of a row only warm up the recurrent state; the algorithm learns from the other `seq_len`
    steps. In the first row of an episode, the episode's first step is the first learned step. Each further row begins
    `seq_len - overlap` steps later than the row before, so that the algorithm learns from every step. Steps before the
    start or after the end of an episode are padding: all columns are 0, and `valid` is False. `state` is the policy's
    recurrent state before the first valid step, stored once per row (Kapturowski et al. 2019, "Recurrent Experience
    Replay in Distributed Reinforcement Learning", section 3).

    Rewards are the scaled rewards of single steps. The discount is gamma, or 0 if the episode terminated. The algorithm
    computes n-step returns, because only the algorithm knows the recurrent state n steps later. With `prioritize`, rows
    have a column `priority`.
    """

    def __init__(
        self,
        seq_len: int,
        burn_in: int,
        overlap: int,
        gamma: float,
        reward_scale: float = 1.0,
        prioritize: Prioritize | None = None,
    ) -> None:
        super().__init__(gamma, reward_scale)
        self.prioritize = prioritize
        self.seq_len, self.length, self.stride = seq_len, burn_in + seq_len, seq_len - overlap
        # The complete rows: environment, first step, first valid step, end, and whether the environment failed.
        self._rows: list[tuple[Array, Array, Array, Array, Array]] = []
        self._age = np.zeros((), np.int64)  # episode steps so far; `[E]` after the first step
        self._covered = np.zeros((), np.int64)  # number of these steps that are already in a row

    def append(self, step: Columns) -> None:
        super().append(step)
        valid = step["valid"]
        ended = step["terminated"] | step["truncated"] | ~valid
        age, stop = self._age + valid, len(self._steps) - 1 + valid  # `stop` follows the episode's last step
        first, end = self._next_row(age, stop)
        is_complete = np.where(valid, ended | (end == stop), age > self._covered)
        (env,) = np.nonzero(is_complete)
        self._rows.append((env, first[env], np.maximum(first, stop - age)[env], stop[env], ~valid[env]))
        self._covered = np.where(ended, 0, np.where(is_complete, age, self._covered))
        self._age = np.where(ended, 0, age)

    def take(self) -> Columns:
        env, first, start, stop, broken = (np.concatenate(part) for part in zip(*self._rows, strict=True))
        time = first[:, None] + np.arange(self.length)
        valid = (time >= start[:, None]) & (time < stop[:, None])
        needed = int(start.min(initial=len(self._steps) - 1))
        time = np.clip(time, start[:, None], stop[:, None] - 1) - needed
        steps = {name: np.stack([step[name] for step in self._steps[needed:]]) for name in self._steps[-1]}
        del steps["valid"]
        state = steps.pop("state", None)
        steps["reward"] = steps["reward"] * np.float32(self.reward_scale)
        steps["discount"] = np.where(steps["terminated"], 0.0, self.gamma).astype(np.float32)
        rows = {name: column[time, env[:, None]] for name, column in steps.items()}
        rows["truncated"][broken, (stop - first - 1)[broken]] = True
        for column in rows.values():
            column[~valid] = 0
        rows["valid"] = valid
        if state is not None:
            rows["state"] = state[start - needed, env]
        next_first, _ = self._next_row(self._age, len(self._steps))
        del self._steps[: int(np.maximum(next_first, len(self._steps) - self._age).min())]  # later rows need the rest
        self._rows = []
        return rows | self._rating(rows, (self.seq_len,))

    @property
    def open_rows(self) -> int:
        return int((self._age - self._covered).sum())

    def state(self) -> State:
        steps = nested("steps", stacked(self._steps))
        return {"age": np.atleast_1d(self._age), "covered": np.atleast_1d(self._covered), **steps}

    def load_state(self, state: State) -> None:
        self._age, self._covered = state["age"], state["covered"]
        self._steps, self._rows = unstacked(within(state, "steps")), []

    def _next_row(self, age: Array, stop: int | Array) -> tuple[Array, Array]:
        end = stop - age + np.where(self._covered > 0, self._covered + self.stride, self.seq_len)
        return end - self.length, end


def sequence_schema(schema: Schema, length: int) -> dict[str, Column]:
    """Return the columns of sequences of `length` steps, given the schema of one step."""
    columns = {name: replace(column, shape=(length, *column.shape)) for name, column in schema.items()}
    state = {"state": schema["state"]} if "state" in schema else {}
    return {**columns, "valid": Column((length,), "bool"), **state}


def mix(priorities: Array, valid: Array, eta: float) -> Array:
    """Return one priority per sequence, given the priorities `[rows, seq_len]` of all steps; padding has no effect.

    The result is eta * max + (1 - eta) * mean (Kapturowski et al. 2019, section 2.3), or NaN if the priority of a valid
    step is negative or not finite.
    """
    is_bad = valid & ~(np.isfinite(priorities) & (priorities >= 0))
    values = np.where(valid & ~is_bad, priorities, 0.0).astype(np.float64)
    mixed = eta * values.max(1) + (1.0 - eta) * values.sum(1) / valid.sum(1)
    return np.where(is_bad.any(1), np.nan, mixed)
