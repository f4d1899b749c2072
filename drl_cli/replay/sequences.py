"""Build sequences from environment steps, for recurrent algorithms."""

from dataclasses import replace

import numpy as np

from drl_cli.replay.builders import Builder, Prioritize, stacked, unstacked
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within


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
        """Return where each environment's next row begins and ends, as indices into `_steps`."""
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
