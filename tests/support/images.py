"""Steps of environments with image stacks that begin, continue and break in every way."""

import numpy as np

from drl_cli.envs.probes import stamp
from drl_cli.types import ActionSpec, Column, EnvSpec, FrameStack

IMAGES = ("obs", "next_obs")
"""The columns of images."""
RESETS = ("copies", "black", "frames")


def image_spec(axis, k, frame=(3, 2), channels=1):
    """Return the spec of observations of k frames with these channels along the first or last axis."""
    shape = (k * channels, *frame) if axis == 0 else (*frame, k * channels)
    return EnvSpec(
        "images", Column(shape, "uint8"), ActionSpec("discrete", 3, "Discrete(3)"), {"": FrameStack(axis, k)}
    )


class ImageSteps:
    """Random steps of E environments. With few grey values, frames also repeat by chance."""

    def __init__(self, spec, num_envs, rng, p_end=0.2, p_break=0.05, greys=256, p_fail=0.0):
        self.spec, self.rng, self.p_end, self.p_break, self.greys = spec, rng, p_end, p_break, greys
        self.p_fail = p_fail
        self.stacks = [self._reset() for _ in range(num_envs)]

    def step(self):
        """Return the columns of a step of all environments, as a worker appends them."""
        obs = np.stack([self._image(stack) for stack in self.stacks])
        valid = self.rng.random(len(obs)) >= self.p_fail
        ended = valid & (self.rng.random(len(obs)) < self.p_end)
        terminated = ended & (self.rng.random(len(obs)) < 0.5)
        self.stacks = [[*stack[1:], self._frame()] for stack in self.stacks]
        for i in np.flatnonzero(self.rng.random(len(obs)) < self.p_break):
            self.stacks[i] = self._reset()  # does not continue the stack, though the episode goes on
        next_obs = np.stack([self._image(stack) for stack in self.stacks])
        next_obs[~valid] = obs[~valid]
        for i in np.flatnonzero(ended | ~valid):
            self.stacks[i] = self._reset()
        action, reward = self.rng.integers(3, size=len(obs)), self.rng.random(len(obs)).astype(np.float32)
        return {
            "obs": obs,
            "action": action,
            "reward": reward,
            "next_obs": next_obs,
            "terminated": terminated,
            "truncated": ended & ~terminated,
            "valid": valid,
        }

    def _reset(self):
        k, frame = self.spec.frame_stacks[""].k, self._frame()
        how = RESETS[self.rng.integers(len(RESETS))]
        return {
            "copies": [frame] * k,
            "black": [np.zeros_like(frame)] * (k - 1) + [frame],
            "frames": [self._frame() for _ in range(k)],
        }[how]

    def _frame(self):
        axis, shape = self.spec.frame_stacks[""].axis, list(self.spec.obs.shape)
        shape[axis] //= self.spec.frame_stacks[""].k
        return self.rng.integers(self.greys, size=shape).astype(np.uint8)

    def _image(self, stack):
        return np.concatenate(stack, self.spec.frame_stacks[""].axis)


def check_frames_rows(rows, spec, n_step, env_steps):
    """Check the rows of Frames-v0 in order of insertion: each frame holds the right step."""
    axis, k = spec.frame_stacks[""].axis, spec.frame_stacks[""].k
    obs, next_obs = (stamp(np.moveaxis(rows[name], axis + (axis >= 0), 1)) for name in ("obs", "next_obs"))
    tags = np.unique(obs[:, -1, 0])
    total = 0
    for tag in tags:
        episode, count = 0, 0
        for i in np.flatnonzero(obs[:, -1, 0] == tag):
            length = 20 + episode * 7 % 41
            steps = min(n_step, length - count)
            for stack, newest in ((obs[i], count), (next_obs[i], count + steps)):
                assert stack.tolist() == [[tag, episode, max(0, newest - j)] for j in range(k - 1, -1, -1)]
            ended = count + steps == length
            assert rows["terminated"][i] == (ended and episode % 2 == 0)
            assert rows["truncated"][i] == (ended and episode % 2 == 1)
            total, count = total + 1, count + 1
            if count == length:
                episode, count = episode + 1, 0
    assert env_steps - (n_step - 1) * len(tags) <= total <= env_steps
