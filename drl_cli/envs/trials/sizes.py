"""Warnings about the steps of a trial: sizes that networks learn badly from, and random numbers that are not saved."""

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig
from drl_cli.envs.observations import at
from drl_cli.types import Array

LARGE, SMALL = 100.0, 1e-3
"""A root mean square beyond these is far from 1."""
USUAL = (0.05, 10.0)
"""Networks learn best from parts whose largest value is above, and whose root mean square is below."""
ENOUGH = 100
"""Steps after which a part of an observation that has not changed is named."""
MOST_NAMED = 5


class Sizes:
    """Collects observations and rewards of a trial's steps. The generators are compared with those at the start."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self._rows: dict[str, list[Array]] = defaultdict(list)
        self._rewards: list[float] = []
        self._actions: list[Array] = []
        self._before = _generators()

    def add(self, floats: dict[str, Array], reward: float, action: Array) -> None:
        """Add the float parts of a step's observation, each `[1, ...]`, the reward and the action. Leave out images.

        The action is in [-1, 1] `[A]`, or empty if it is a choice.
        """
        for path, value in floats.items():
            if value.ndim <= 2:
                self._rows[path].append(value.reshape(-1))
        self._rewards.append(reward)
        self._actions.append(action)

    @property
    def is_unusual(self) -> bool:
        """Whether a part of the observations has a size outside USUAL. Parts that never changed can't be too small."""
        for rows in self._rows.values():
            values = np.stack(rows).astype(np.float64)
            largest, sizes = np.abs(values).max(0), np.sqrt(np.square(values).mean(0))
            if (sizes > USUAL[1]).any() or ((largest < USUAL[0]) & (values.std(0) > 0)).any():
                return True
        return False

    @property
    def is_sparse(self) -> bool:
        """Whether no reward was above 0, and the rewards depend on nothing but the size of the action."""
        rewards, actions = np.asarray(self._rewards), np.stack(self._actions).astype(np.float64)
        sizes = np.stack([np.ones(len(rewards)), np.abs(actions).sum(1), np.square(actions).sum(1)], 1)
        rest = rewards - sizes @ np.linalg.lstsq(sizes, rewards, rcond=None)[0]
        return bool(rewards.max() <= 0 and np.abs(rest).max() <= 1e-3 * np.abs(rewards).max())

    def lines(self, is_thorough: bool) -> Iterator[str]:
        """Yield a warning for each size that no key scales. If `is_thorough`, also name what is always equal."""
        num, id = len(self._rewards), self.config.id
        for whose, state in _generators().items():
            if state != self._before[whose]:
                advice = "draw from self.np_random, or a resumed run differs from one that was not stopped"
                yield f"{id}: its random numbers come from {whose} global generator; {advice}"
        for path, rows in self._rows.items():
            values = np.stack(rows).astype(np.float64)
            sizes, changes = np.sqrt(np.square(values).mean(0)), values.std(0) > 0
            if (line := _far(sizes[changes])) and not self.config.normalize_obs:
                yield f"{id}: observations{at(path)} have parts {line}; env.normalize_obs=true brings them near 1"
            if is_thorough and num >= ENOUGH and not changes.all():
                parts = _numbers(np.flatnonzero(~changes))
                yield f"{id}: {parts} of observations{at(path)} never changed in {num} steps"
        if is_thorough and num >= ENOUGH and not any(self._rewards):
            advice = "if success is rare, reward=rnd rewards what is new"
            yield f"{id}: all rewards of {num} random steps were 0; {advice}"
        size = np.sqrt(np.square([reward for reward in self._rewards if reward] or [1.0]).mean(keepdims=True))
        is_scaled = self.config.normalize_reward or self.config.reward_scale != 1.0 or self.config.reward_clip
        if (line := _far(size)) and not is_scaled:
            yield f"{id}: rewards are {line}; env.normalize_reward=true brings them near 1"


def _generators() -> dict[str, Any]:
    """Return the states of the global random generators, by whose they are."""
    numpy = np.random.get_state(legacy=False)["state"]
    return {"numpy's": (numpy["key"].tobytes(), numpy["pos"]), "Python's": random.getstate()}


def _far(sizes: Array) -> str:
    """Return the size of a part that is far from 1, or an empty text."""
    if len(sizes) and sizes.max() >= LARGE:
        return f"of size {sizes.max():.1g}"
    return f"of size {sizes.min():.1g}" if len(sizes) and sizes.min() <= SMALL else ""


def _numbers(places: Array) -> str:
    """Return `parts 0, 3 and 12 more`, the first parts of a row by number."""
    named, more = ", ".join(map(str, places[:MOST_NAMED])), len(places) - MOST_NAMED
    return f"part{'s' * (len(places) > 1)} {named}{f' and {more} more' if more > 0 else ''}"
