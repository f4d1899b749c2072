"""Datasets for tests: episodes of random actions in an environment, as an .npz file."""

import gymnasium
import numpy as np


def record(env, path, steps=400, seed=0):
    """Write `steps` steps of random actions in an environment or a Gymnasium id, to the last end of an episode."""
    env = gymnasium.make(env) if isinstance(env, str) else env
    env.action_space.seed(seed)
    rows, obs = [], env.reset(seed=seed)[0]
    while len(rows) < steps or not (rows[-1][3] or rows[-1][4]):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated, truncated, next_obs))
        obs = env.reset()[0] if terminated or truncated else next_obs
    names = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations")
    np.savez(path, **{name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    return len(rows)
