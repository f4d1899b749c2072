"""Advantages and returns along the time axis, in numpy: one pass over a rollout."""

import numpy as np

from drl_cli.types import Array


def gae(reward: Array, discount: Array, value: Array, next_value: Array, cut: Array, lambda_: float) -> Array:
    """Generalised advantage estimates, float32 `[B]` (Schulman et al. 2015, arXiv 1506.02438, eq. 16).

        delta_i = reward_i + discount_i V(next_obs_i) - V(obs_i)
        A_i     = delta_i + discount_i lambda A_{i+1}, and delta_i alone where `cut_i` or in the last row

    All inputs `[B]`, rows in order of time; `cut` is True where the next row does not follow from this one. `discount`
    is 0 only where the episode terminated, so that a truncated or unfinished one bootstraps from its next_obs.
    """
    delta = (reward + discount * next_value - value).tolist()
    decay = np.where(cut, 0.0, discount * lambda_).tolist()
    following = 0.0
    for i in range(len(delta) - 1, -1, -1):
        delta[i] = following = delta[i] + decay[i] * following
    return np.array(delta, np.float32)
