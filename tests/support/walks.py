"""Episodes in which no observation repeats, and the expected states of a memory."""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """No observation repeats, episodes have 5 to 9 steps, and step number `fails_at` over all episodes raises."""

    def __init__(self, box=False, fails_at=0):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-1, 1, (2,), np.float32) if box else Discrete(3)
        self.fails_at, self.life = fails_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 10))
        return self.np_random.normal(0, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.left, self.life = self.left - 1, self.life + 1
        if self.life == self.fails_at:
            raise RuntimeError("it fell")
        obs = self.np_random.normal(0, 1, 2).astype(np.float32)
        return obs, float(np.sum(action)), self.left == 0, False, {}


gymnasium.register("Walk-v0", Walk)


def unrolled(encoder, obs):
    """Return the states before each step of an episode `[T, S]` and the memory's outputs `[T, H]`."""
    memory = encoder.memory
    with torch.no_grad():
        x = encoder.features(torch.from_numpy(obs)).unsqueeze(1)
        nothing, begins = torch.zeros(1, memory.state_size), torch.zeros(len(x), 1, dtype=torch.bool)
        out, _ = memory.unroll(x, nothing, begins)
        states = [nothing] + [memory.unroll(x[:t], nothing, begins[:t])[1] for t in range(1, len(x))]
    return torch.cat(states).numpy(), out[:, 0]


def episodes(obs, next_obs):
    """Return whole episodes `[T, ...]` from steps `[N, ...]` in any order, joined by equal observations."""
    after = {o.tobytes(): n for o, n in zip(obs, next_obs, strict=True)}
    inner = {n.tobytes() for n in next_obs}
    found = []
    for first in {o.tobytes(): o for o in obs if o.tobytes() not in inner}.values():
        episode, here = [], first
        while here.tobytes() in after:
            episode.append(here)
            here = after[here.tobytes()]
        found.append(np.stack(episode))
    return found


def steps(rows):
    if "valid" not in rows:
        return rows["obs"], rows["next_obs"]
    return rows["obs"][rows["valid"]], rows["next_obs"][rows["valid"]]


def check_states(encoder, rows, least):
    """Check that each row's state is the state before its first valid step. Return memory outputs by observation."""
    states, outs = {}, {}
    found = episodes(*steps(rows))
    assert len(found) >= least
    assert max(len(episode) for episode in found) > 3
    for episode in found:
        for obs, state, out in zip(episode, *unrolled(encoder, episode), strict=True):
            states[obs.tobytes()], outs[obs.tobytes()] = state, out
    first = rows["valid"].argmax(1) if "valid" in rows else None
    obs = rows["obs"] if first is None else rows["obs"][np.arange(len(first)), first]
    expected = np.stack([states[one.tobytes()] for one in obs])
    np.testing.assert_allclose(rows["state"], expected, rtol=1e-5, atol=1e-6)
    assert (rows["state"] == 0).all(1).any()
    assert rows["state"].any(1).any()
    return outs
