"""Bit flipping: a goal environment that is hard without hindsight (Andrychowicz et al. 2017, section 3.1)."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from drl_cli.types import Array

Info = dict[str, Any]


class BitFlip(gymnasium.Env[Any, Any]):
    """An action flips one of `bits` bits. The goal is another state of the bits.

    The observation has the bits as `achieved_goal` and the goal as `desired_goal`, float32 `[bits]` each. The reward is
    1 if a step reaches the goal, which ends the episode, and 0 otherwise. After `bits` steps, the episode is truncated.
    The mean return is therefore the success rate. The paper's rewards are 1 lower.
    """

    def __init__(self, bits: int = 20) -> None:
        self.bits = bits
        goal = Box(0.0, 1.0, (bits,), np.float32)
        self.observation_space = Dict(achieved_goal=goal, desired_goal=goal)
        self.action_space = Discrete(bits)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Array], Info]:
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, Info]:
        self.state[action] = 1 - self.state[action]
        self.steps += 1
        is_there = bool(self.compute_terminated(self.state, self.goal, {}))
        return self._obs(), float(is_there), is_there, self.steps == self.bits, {"is_success": float(is_there)}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Return the rewards `[...]` of achieved and desired goals `[..., bits]`."""
        return self.compute_terminated(achieved_goal, desired_goal, info).astype(np.float32)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Return where achieved goals equal desired goals, bool `[...]`."""
        is_equal: Array = np.asarray((achieved_goal == desired_goal).all(-1))
        return is_equal

    def _obs(self) -> dict[str, Array]:
        return {"achieved_goal": self.state.copy(), "desired_goal": self.goal.copy()}
