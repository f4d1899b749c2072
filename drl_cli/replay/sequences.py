"""From environment steps to sequences, for recurrent algorithms."""

from dataclasses import replace

import numpy as np

from drl_cli.replay.builders import stacked, unstacked
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within


class SequenceBuilder:
    """Turns steps of E environments into sequences of one environment each, `[rows, burn_in + seq_len, ...]`.

    The first `burn_in` steps of a row only warm the recurrent state up, the other `seq_len` are learned from. The next
    row of an episode begins `seq_len - overlap` steps later, the first row learns from the episode's first step: every
    step is learned from, and none is where episodes meet. Where a row reaches beyond an episode's start or end it is
    all zero, `valid` included, which is True elsewhere. An episode whose environment fails ends before the step
    that is not `valid`, as truncated. `state` is the policy's before the first valid step, once
    per row: to be kept as it is through the padding before that (Kapturowski et al. 2019, "Recurrent Experience Replay
    in Distributed Reinforcement Learning", section 3).

    Steps are 1-step: reward scaled, discount = gamma, 0 if terminated. Longer returns are the algorithm's: the
    recurrent state that belongs to the observation n steps later is known only there.
    """

    def __init__(self, seq_len: int, burn_in: int, overlap: int, gamma: float, reward_scale: float = 1.0) -> None:
        self.seq_len, self.length, self.stride = seq_len, burn_in + seq_len, seq_len - overlap
        self.gamma, self.reward_scale = gamma, reward_scale
        self._steps: list[Columns] = []
        self._rows: list[tuple[Array, Array, Array, Array, Array]] = []  # env, first, start, stop, broken off
        self._age = np.zeros((), np.int64)  # steps of each environment's episode so far, `[E]` after the first step
        self._covered = np.zeros((), np.int64)  # how many of them some row has

    def append(self, step: Columns) -> None:
        """Add one step of all environments: obs, action, reward, ..., terminated, truncated, valid, ... `[E, ...]`.

        The arrays are kept, not copied.
        """
        self._steps.append(step)
        valid = step["valid"]
        ended = step["terminated"] | step["truncated"] | ~valid
        age, stop = self._age + valid, len(self._steps) - 1 + valid  # the steps of each episode end before `stop`
        first, end = self._next_row(age, stop)
        is_complete = np.where(valid, ended | (end == stop), age > self._covered)
        (env,) = np.nonzero(is_complete)
        self._rows.append((env, first[env], np.maximum(first, stop - age)[env], stop[env], ~valid[env]))
        self._covered = np.where(ended, 0, np.where(is_complete, age, self._covered))
        self._age = np.where(ended, 0, age)

    def take(self) -> Columns:
        """All sequences that are complete now, in the order in which they were; fresh arrays."""
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
        self._forget()
        return rows

    @property
    def open_rows(self) -> int:
        """Steps appended that are in no complete sequence yet."""
        return int((self._age - self._covered).sum())

    def state(self) -> State:
        steps = nested("steps", stacked(self._steps))
        return {"age": np.atleast_1d(self._age), "covered": np.atleast_1d(self._covered), **steps}

    def load_state(self, state: State) -> None:
        self._age, self._covered = state["age"], state["covered"]
        self._steps, self._rows = unstacked(within(state, "steps")), []

    def _next_row(self, age: Array, stop: int | Array) -> tuple[Array, Array]:
        """First and end index among the kept steps of the row that each environment completes next."""
        end = stop - age + np.where(self._covered > 0, self._covered + self.stride, self.seq_len)
        return end - self.length, end

    def _forget(self) -> None:
        """Drop the steps that no later row will have."""
        stop = len(self._steps)
        first, _ = self._next_row(self._age, stop)
        del self._steps[: int(np.maximum(first, stop - self._age).min())]
        self._rows = []


def sequence_schema(schema: Schema, length: int) -> dict[str, Column]:
    """The columns of a sequence of `length` steps that have these columns each."""
    columns = {name: replace(column, shape=(length, *column.shape)) for name, column in schema.items()}
    state = {"state": schema["state"]} if "state" in schema else {}
    return {**columns, "valid": Column((length,), "bool"), **state}


def mix(priorities: Array, valid: Array, eta: float) -> Array:
    """The priority of each sequence from those of its steps, both `[rows, seq_len]`, of which only the `valid` count.

    eta * max + (1 - eta) * mean (Kapturowski et al. 2019, section 2.3). NaN if a valid one is negative or not finite.
    """
    is_bad = valid & ~(np.isfinite(priorities) & (priorities >= 0))
    values = np.where(valid & ~is_bad, priorities, 0.0).astype(np.float64)
    mixed = eta * values.max(1) + (1.0 - eta) * values.sum(1) / valid.sum(1)
    return np.where(is_bad.any(1), np.nan, mixed)
