"""Tables of single steps, from which batches are built by an index: windows, or transitions with other goals."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from drl_cli.replay.base import Sampled
from drl_cli.replay.builders import mix
from drl_cli.replay.samplers import Sampler
from drl_cli.replay.store import RingStore
from drl_cli.replay.tables import ReplayTable
from drl_cli.types import Array, Column, Columns, EnvSpec, Schema, State, leaves

TARGET_VERSION = "target_version"
"""The version of the parameters that found the targets of a row, in the columns that a re-analyser writes."""


class WindowTable(ReplayTable):
    """Stores each step once, and draws windows `[..., length]` that begin at the sampled rows.

    `successor[slot]` is the slot of the next step of the episode, or `slot` if the table does not have this step. A
    window ends early at the end of an episode and at the newest row. The rest is padding, as in sequences: all columns
    are 0, and `valid` is False. `state` is the policy's recurrent state before the first step, or with
    `has_step_states` before each step.

    The discount is computed from `terminated`, so that the index needs no additional memory.
    """

    has_step_states = False

    def __init__(self, store: RingStore, sampler: Sampler, length: int, gamma: float, eta: float) -> None:
        super().__init__(store, sampler)
        self.length, self.gamma, self.eta = length, gamma, eta
        self.successor = np.arange(store.capacity, dtype=np.int32)
        self.newest: dict[int, int] = {}  # the id of the newest row of each source
        self.target_version: Array | None = None  # see `track_ages`
        self.target_age: float | None = None

    def track_ages(self) -> None:
        """Note the version that found the targets of each row, -1 for random actions or an unknown version.

        `target_age` is then the mean age of the targets in the last draw [versions], without those of random actions.
        """
        self.target_version = np.full(self.store.capacity, -1, np.int32)

    @property
    def nbytes(self) -> int:
        ages = 0 if self.target_version is None else self.target_version.nbytes
        return super().nbytes + self.successor.nbytes + ages

    def insert(self, columns: Columns, versions: Array) -> None:
        first = self.store.inserts
        super().insert({name: column for name, column in columns.items() if name != "discount"}, versions)
        self._link(columns["source"])
        if self.target_version is not None:
            self.target_version[np.arange(first, self.store.inserts) % self.store.capacity] = versions

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        drawn = super().sample(num_batches, batch_size, version)
        if self.target_version is not None and drawn.row_ids is not None:
            found = self.target_version[drawn.row_ids[drawn.row_ids >= 0] % self.store.capacity]
            known = found[found >= 0]
            self.target_age = float((version - known).mean()) if len(known) else None
        return drawn

    def write(self, row_ids: Array, columns: Columns) -> None:
        """Replace columns, and note the versions in the column `TARGET_VERSION`, if given, as those of the targets."""
        super().write(row_ids, {name: column for name, column in columns.items() if name != TARGET_VERSION})
        if self.target_version is not None and TARGET_VERSION in columns:
            is_there = self.store.holds(row_ids)
            self.target_version[row_ids[is_there] % self.store.capacity] = columns[TARGET_VERSION][is_there]

    def stats(self) -> Mapping[str, float]:
        return super().stats() if self.target_age is None else {**super().stats(), "target_age": self.target_age}

    def state(self) -> State:
        newest = np.array([*self.newest.items()], np.int64).reshape(-1, 2)
        ages = {} if self.target_version is None else {TARGET_VERSION: self.target_version.copy()}
        return super().state() | {"successor": self.successor.copy(), "newest": newest} | ages

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.successor[:] = state["successor"]
        self.newest = dict(state["newest"].tolist())
        if self.target_version is not None:
            self.target_version[:] = state[TARGET_VERSION]

    def _link(self, source: Array) -> None:
        """Link the new rows, whose sources `[rows]` are given, to the steps before them.

        A row follows the previous row of its source if the episode goes on and the observations are equal. They differ
        if a block between the two rows is in another shard or was lost.
        """
        store, columns, count = self.store, self.store.columns, len(source)
        order = np.argsort(source, kind="stable")
        rows, sources = store.inserts - count + order, source[order]
        before = np.empty_like(rows)
        before[1:] = rows[:-1]
        is_first = np.ones(count, np.bool_)
        is_first[1:] = sources[1:] != sources[:-1]
        before[is_first] = [self.newest.get(each, -1) for each in sources[is_first].tolist()]
        is_last = np.roll(is_first, -1)
        self.newest |= dict(zip(sources[is_last].tolist(), rows[is_last].tolist(), strict=True))
        self.successor[rows % store.capacity] = rows % store.capacity
        is_held = store.holds(before)
        rows, before = rows[is_held], before[is_held]
        slots, slots_before = rows % store.capacity, before % store.capacity
        follows = ~(columns["terminated"][slots_before] | columns["truncated"][slots_before])
        for name in columns:
            if name.partition(".")[0] == "obs":
                same = columns[f"next_{name}"][slots_before] == columns[name][slots]
                follows &= same.all(tuple(range(1, same.ndim)))
        self.successor[slots_before[follows]] = slots[follows]

    def _walk(self, slots: Array) -> tuple[Array, Array]:
        """Return the slots of windows `[..., length]` and where they are valid. Padding repeats the last slot."""
        path = [slots.ravel()]
        for _ in range(self.length - 1):
            path.append(self.successor.take(path[-1]))
        steps = np.stack(path, 1)
        valid = np.ones(steps.shape, np.bool_)
        np.not_equal(steps[:, 1:], steps[:, :-1], out=valid[:, 1:])
        shape = (*slots.shape, self.length)
        return steps.reshape(shape), valid.reshape(shape)

    def _take(self, slots: Array) -> Columns:
        path, valid = self._walk(slots)
        stored = self.store.columns
        once = () if self.has_step_states else ("state",)
        columns = {name: column.take(path, 0) for name, column in stored.items() if name not in once}
        columns["discount"] = (~columns["terminated"]) * np.float32(self.gamma)
        padding = (~valid).ravel().nonzero()[0]
        if len(padding):
            for column in columns.values():
                if column.dtype != object:  # the table that wraps this one makes the images, and their padding
                    column.reshape(valid.size, *column.shape[valid.ndim :])[padding] = 0
        columns["valid"] = valid
        return columns | {name: stored[name].take(slots, 0) for name in once if name in stored}

    def _row_ids(self, slots: Array) -> Array:
        path, valid = self._walk(slots)
        return np.where(valid, self.store.row_ids(path), -1)

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        """Set the priority of each window's first step: the mix of the priorities `[..., length]` of its steps.

        The ids have to be those of the sample, because a window may have got more steps since.
        """
        mixed = mix(priorities.reshape(-1, self.length), row_ids.reshape(-1, self.length) >= 0, self.eta)
        super().update_priorities(row_ids[..., 0], mixed.reshape(row_ids.shape[:-1]))


def window_schema(schema: Schema) -> Schema:
    return {name: column for name, column in schema.items() if name != "discount"}


ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""The parts of a goal environment's observations that contain the goals."""

Outcome = Callable[[Array, Array], tuple[Array, Array | None]]
"""Returns rewards `[n]` in units of replay and, if the environment has `compute_terminated`, bools `[n]`.

The arguments are the goals `[n, ...]` that a step achieved and the desired goals `[n, ...]`.
"""


class HindsightTable(WindowTable):
    """Stores each step once, and gives `her_k` of `her_k + 1` sampled rows another desired goal.

    The new goal is the achieved goal after a random step of the same episode, from the row's own step on (Andrychowicz
    et al. 2017, "Hindsight Experience Replay", arXiv 1707.01495, section 4.5, strategy `future`). Only steps in the
    table count, and an episode that is still running ends at its newest step. `outcome` computes the rewards of the new
    goal, and where the episode would have terminated.

    A row is an n-step transition, built when it is drawn, as NStepBuilder does. The row ends early where the new goal
    terminates the episode.
    """

    outcome: Outcome

    def __init__(self, store: RingStore, sampler: Sampler, n_step: int, gamma: float, her_k: int) -> None:
        super().__init__(store, sampler, n_step, gamma, 1.0)
        self.her_k = her_k

    def _take(self, slots: Array) -> Columns:
        stored = self.store.columns
        path, valid = self._walk(slots)
        reward, terminated = stored["reward"].take(path), stored["terminated"].take(path)
        is_new = self.sampler.rng.random(slots.shape) < self.her_k / (self.her_k + 1)
        goal = stored[f"next_obs.{ACHIEVED}"].take(self._later(slots[is_new]), 0)
        reward[is_new], terminated[is_new] = self._outcome(path[is_new], goal)
        valid[..., 1:] &= ~np.logical_or.accumulate(terminated, -1)[..., :-1]
        length = valid.sum(-1)
        last = np.take_along_axis(path, length[..., None] - 1, -1)
        columns = {
            name: column.take(last[..., 0] if name.startswith(("next_obs.", "truncated")) else slots, 0)
            for name, column in stored.items()
        }
        for name in ("obs", "next_obs"):
            columns[f"{name}.{DESIRED}"][is_new] = goal
        powers = (self.gamma ** np.arange(self.length + 1)).astype(np.float32)
        columns["reward"] = (reward * valid * powers[:-1]).sum(-1)
        columns["terminated"] = np.asarray((terminated & valid).any(-1))
        return columns | {"discount": np.where(columns["terminated"], np.float32(0), powers[length])}

    def _later(self, slots: Array) -> Array:
        """Return, for each slot `[n]`, a random slot from the rest of the episode, which includes the slot itself."""
        path = [slots]
        while not np.array_equal(following := self.successor.take(path[-1]), path[-1]):
            path.append(following)
        steps = np.stack(path, 1)
        count = 1 + (steps[:, 1:] != steps[:, :-1]).sum(1)
        chosen: Array = steps[np.arange(len(slots)), (self.sampler.rng.random(len(slots)) * count).astype(np.int64)]
        return chosen

    def _outcome(self, path: Array, goal: Array) -> tuple[Array, Array]:
        """Return rewards and terminations of the steps in the slots `[n, length]` if `goal` `[n, ...]` was desired.

        A step that terminated for another reason than its goal still terminates.
        """
        stored, steps = self.store.columns, path.ravel()
        achieved = stored[f"next_obs.{ACHIEVED}"].take(steps, 0)
        reward, reached = self.outcome(achieved, goal.repeat(self.length, 0))
        terminated = stored["terminated"].take(steps)
        if reached is not None:
            _, before = self.outcome(achieved, stored[f"next_obs.{DESIRED}"].take(steps, 0))
            terminated = reached | (terminated & ~np.asarray(before))
        return reward.reshape(path.shape), terminated.reshape(path.shape)

    _row_ids, update_priorities = ReplayTable._row_ids, ReplayTable.update_priorities  # a row is one transition


def goal_problems(spec: EnvSpec) -> Iterator[str]:
    """Yield a line for each reason why an environment's observations have no goals that can be replaced."""
    parts = leaves(spec.obs)
    if not {ACHIEVED, DESIRED} <= parts.keys():
        there = ", ".join(parts) if parts.keys() != {""} else "no parts"
        needed = f"the parts {ACHIEVED} and {DESIRED} in the observations"
        yield f"replay.rows=hindsight needs {needed}; {spec.id} has {there}; say replay.rows=transitions"
        return
    if parts[ACHIEVED] != parts[DESIRED]:
        yield f"replay.rows=hindsight: {ACHIEVED} and {DESIRED} of {spec.id} have different shapes or types"
    if any(not _is_vector(parts[name]) for name in (ACHIEVED, DESIRED)):
        yield f"replay.rows=hindsight: the goals of {spec.id} must be vectors of numbers or booleans"


def _is_vector(column: Column) -> bool:
    return column.dtype in ("float32", "bool") and len(column.shape) <= 1
