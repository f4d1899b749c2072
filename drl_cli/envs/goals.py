"""The reward of goal environments as a function of goals, for hindsight replay.

A goal environment has the method `compute_reward(achieved_goal, desired_goal, info)` of Gymnasium's GoalEnv, and may
have `compute_terminated` with the same arguments. Many of them accept batches of goals, and others only one goal.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvConfig, EnvError, EnvFault
from drl_cli.envs.faults import Tick, no_tick
from drl_cli.envs.make import build
from drl_cli.types import Array
from drl_cli.utils.outside import raised

STEPS = 8
"""Number of random steps from which goals for the checks are taken."""
ATOL = 1e-4
"""Permitted difference between rewards. Goals in replay are float32."""


OfGoals = Callable[[Array, Array], Array]


class GoalOutcome:
    """Computes rewards and terminations of goals `[n, ...]` by the environment's own functions.

    The functions get an empty `info`. A function that gives other results for a batch than for single goals is called
    once for each goal. Rewards are clipped and scaled by `env.reward_clip` and `env.reward_scale`, as the rewards in
    replay are. Raise EnvError if the environment lacks `compute_reward`, or if it disagrees with the rewards of `step`.
    Raise EnvFault if one of the functions raises.
    """

    def __init__(self, config: EnvConfig, tick: Tick = no_tick) -> None:
        self.config = config
        tick("its constructor")
        self.env = build(config)
        base: Any = self.env.unwrapped
        if not callable(getattr(base, "compute_reward", None)):
            raise EnvError(
                f"replay.rows=hindsight: {config.id} has no compute_reward(achieved_goal, desired_goal, info)"
            )
        achieved, desired = self._try(base, tick)
        tick("compute_reward")
        self.reward = _goal_function(config.id, base.compute_reward, achieved, desired)
        tick("compute_terminated")
        has_end = callable(getattr(base, "compute_terminated", None))
        self.terminated = _goal_function(config.id, base.compute_terminated, achieved, desired) if has_end else None

    def __call__(self, achieved: Array, desired: Array) -> tuple[Array, Array | None]:
        reward, limit = self.reward(achieved, desired).astype(np.float32), self.config.reward_clip
        if limit is not None:
            reward = reward.clip(-limit, limit)
        reward *= np.float32(self.config.reward_scale)
        return reward, None if self.terminated is None else self.terminated(achieved, desired).astype(np.bool_)

    def close(self) -> None:
        self.env.close()

    def _try(self, base: Any, tick: Tick) -> tuple[Array, Array]:
        """Take random steps. Return goals `[n, ...]` that were achieved, and as many desired goals."""
        id, goals = self.config.id, []
        tick("reset")
        obs, _ = self.env.reset(seed=0)
        self.env.action_space.seed(0)
        for _ in range(STEPS):
            tick("step")
            obs, reward, terminated, truncated, info = self.env.step(self.env.action_space.sample())
            achieved, desired = obs["achieved_goal"], obs["desired_goal"]
            goals += [(achieved, desired), (achieved, achieved)]
            tick("compute_reward")
            again = _call(id, base.compute_reward, achieved, desired, info)
            if abs(float(again) - float(reward)) > ATOL:
                raise EnvError(
                    f"replay.rows=hindsight: {id}'s step gave the reward {reward:g}, and its compute_reward gives "
                    f"{float(again):g} for the same goals; they must be equal"
                )
            if terminated or truncated:
                tick("reset")
                self.env.reset()
        pairs = [np.stack([np.asarray(each) for each in side]) for side in zip(*goals, strict=True)]
        return pairs[0], pairs[1]


def _goal_function(id: str, function: Callable[..., Any], achieved: Array, desired: Array) -> OfGoals:
    """Return a function of goals `[n, ...]`, called with all at once if the results for these examples are right."""

    def together(achieved: Array, desired: Array) -> Array:
        return np.asarray(function(achieved, desired, {}))

    def singly(achieved: Array, desired: Array) -> Array:
        pairs = zip(achieved, desired, strict=True)
        return np.array([np.asarray(_call(id, function, *pair, {})).item() for pair in pairs])

    expected = singly(achieved, desired)
    try:
        found = together(achieved, desired)
        is_right = found.shape == expected.shape and np.allclose(found, expected, atol=ATOL)
    except Exception:  # the function accepts only single goals
        is_right = False
    return together if is_right else singly


def _call(id: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise EnvFault(f"{id}: {function.__name__} {raised(error)}") from error
