"""Probes of one step: the best action is known, and most of them are a box, a choice or a picture."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from drl_cli.types import Array

Info = dict[str, Any]


class OneStep(gymnasium.Env[Any, Any]):
    """Base of environments whose episodes end after one step. A subclass defines `draw` and may override `reward`."""

    goal: Any  # Any: a number or an array, depending on the subclass

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.info: Info = {}
        self.obs = self.draw()
        return self.obs, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        return self.obs, self.reward(action), True, False, self.info

    def draw(self) -> Any:
        """Draw a new problem and return its observation."""
        raise NotImplementedError

    def reward(self, action: Any) -> float:
        """Return the reward of an action: 1 if the action equals `goal`, else 0."""
        return float(action == self.goal)


class Reach(OneStep):
    """The best action a equals o; the reward is -`scale` (a - o)^2, and the observation is `scale` o + `shift`.

    Scaled-v0 has scale 1000 and shift 500, to test normalization.
    """

    def __init__(self, scale: int = 1, shift: int = 0) -> None:
        self.scale, self.shift = scale, shift
        self.observation_space = Box(shift - 0.8 * scale, shift + 0.8 * scale, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def draw(self) -> Any:
        self.goal = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.scale * self.goal + self.shift

    def reward(self, action: Array) -> float:
        return self.scale * -float((action[0] - self.goal[0]) ** 2)


class Choose(OneStep):
    """The observation is a one-hot vector `[3]`. The reward is 1 for the choice 3 + (index of the 1), else 0."""

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3, start=3)

    def draw(self) -> Any:
        self.goal = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.goal]

    def reward(self, action: np.int64) -> float:
        return super().reward(action - 3)


class Switches(OneStep):
    """An action has two components: a choice of 1, 2 or 3, and a choice of 5 or 6.

    The observation has a one-hot vector for each component. The reward is the fraction of right components: at most 1,
    and 5/12 on average for random actions.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (5,), np.float32)
        self.action_space = MultiDiscrete([3, 2], start=[1, 5])

    def draw(self) -> Any:
        first, second = self.goal = self.np_random.integers([3, 2])
        return np.concatenate([np.eye(3)[first], np.eye(2)[second]]).astype(np.float32)

    def reward(self, action: Array) -> float:
        return float((action - [1, 5] == self.goal).mean())


class Masked(OneStep):
    """A one-hot observation shows the best of four choices. The legal-action mask allows this choice and one other.

    The reward is 1 for the best choice, 0 for the other legal choice, and -1 for an illegal choice. The best policy
    reaches 1, and a policy that sees only the mask reaches 0.5. The mask is in `info`; with `part`, the mask is in the
    observation beside `goal`. With `components`, an action makes two such choices, and the reward is the mean of both
    rewards.
    """

    def __init__(self, part: bool = False, components: bool = False) -> None:
        self.num, self.part = 1 + components, part
        goal = Box(0.0, 1.0, (4 * self.num,), np.float32)
        self.observation_space = Dict(action_mask=MultiBinary(4 * self.num), goal=goal) if part else goal
        self.action_space = MultiDiscrete([4, 4]) if components else Discrete(4)

    def draw(self) -> Any:
        self.goal = self.np_random.integers(4, size=self.num)
        self.other = (self.goal + self.np_random.integers(1, 4, self.num)) % 4
        goal, choices = np.eye(4, dtype=np.float32)[self.goal].ravel(), np.eye(4, dtype=np.int8)
        mask = {"action_mask": (choices[self.goal] | choices[self.other]).ravel()}
        if self.part:
            return {**mask, "goal": goal}
        self.info = mask
        return goal

    def reward(self, action: Any) -> float:
        rewards = np.where(action == self.goal, 1.0, np.where(action == self.other, 0.0, -1.0))
        return float(rewards.mean())


PATCH = 12
"""Height and width of the bright patch in pixels."""


class Patch(OneStep):
    """An image `[size, size, 4]` with a bright patch. The reward is 1 for the best choice, else 0.

    Patch-v0: the best of four choices is the quadrant that contains the patch: 0 (upper left), 1 (upper right),
    2 (lower left), 3 (lower right). A network that averages convolutions without padding over all positions reaches
    only 0.25.

    Both-v0 (`has_vector`): the observation also has a `vector`, [1] or [-1]. Choice 0 is best for (patch on the left,
    1) and (right, -1), else choice 1. A policy that sees only one part reaches 0.5.
    """

    def __init__(self, size: int = 84, has_vector: bool = False) -> None:
        self.size, self.has_vector = size, has_vector
        image = Box(0, 255, (size, size, 4), np.uint8)
        self.observation_space = Dict(image=image, vector=Box(-1.0, 1.0, (1,), np.float32)) if has_vector else image
        self.action_space = Discrete(2 if has_vector else 4)

    def draw(self) -> Any:
        half = self.size // 2
        if not self.has_vector:
            self.goal = int(self.np_random.integers(4))
            return self._image(np.array(divmod(self.goal, 2)) * half + self._corner(half, half))
        is_right, is_negative = self.np_random.integers(2, size=2)
        image = self._image(self._corner(self.size, half) + np.array([0, is_right * half]))
        self.goal = is_right ^ is_negative
        return {"image": image, "vector": np.array([1 - 2 * is_negative], np.float32)}

    def _corner(self, height: int, width: int) -> Array:
        """Return a random upper left corner [down, right] for a patch inside a rectangle."""
        return self.np_random.integers([height - PATCH + 1, width - PATCH + 1])

    def _image(self, corner: Array) -> Array:
        image = np.zeros((self.size, self.size, 4), np.uint8)
        y, x = corner.tolist()
        image[y : y + PATCH, x : x + PATCH] = 255
        return image


class PatchReach(Patch):
    """The best action is a position in [-1, 1]^2, and the reward is minus the squared distance to it, at most 0.

    PatchReach-v0: the position of the patch, [down, right]. A network that averages convolutions without padding over
    all positions reaches only about -2/3. BothReach-v0 (`has_vector`): [position of the patch to the right, `vector`].
    A policy that sees only one part reaches about -1/3.
    """

    def __init__(self, size: int = 84, has_vector: bool = False) -> None:
        super().__init__(size, has_vector)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def draw(self) -> Any:
        corner = self._corner(self.size, self.size)
        self.goal = 2.0 * corner / (self.size - PATCH) - 1.0
        if not self.has_vector:
            return self._image(corner)
        vector = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self.goal = np.array([self.goal[1], vector[0]])
        return {"image": self._image(corner), "vector": vector}

    def reward(self, action: Array) -> float:
        return -float(np.square(action - self.goal).sum())


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
