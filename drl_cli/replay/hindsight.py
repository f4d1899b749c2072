"""Hindsight experience replay (HER): sampled transitions get goals that their episode reached later."""

from collections.abc import Callable, Iterator

import numpy as np

from drl_cli.replay.samplers import Sampler
from drl_cli.replay.store import RingStore
from drl_cli.replay.tables import ReplayTable
from drl_cli.replay.windows import WindowTable
from drl_cli.types import Array, Column, Columns, EnvSpec, leaves

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
