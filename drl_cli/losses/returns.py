"""Advantages of rollouts (numpy) and n-step returns of sequences (torch)."""

import numpy as np

from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch


def gae(reward: Array, discount: Array, value: Array, next_value: Array, cut: Array, lambda_: float) -> Array:
    """Return generalised advantage estimates, float32 `[B]` (Schulman et al. 2015, arXiv 1506.02438, eq. 16).

        delta_i = reward_i + discount_i V(next_obs_i) - V(obs_i)
        A_i     = delta_i + discount_i lambda A_{i+1};  A_i = delta_i if cut_i, and in the last row

    All arrays are `[B]`, in time order. `cut` is True if the next row does not continue this row's episode. `discount`
    is 0 only if the episode terminated, so truncated and unfinished episodes bootstrap from V(next_obs).
    """
    delta = (reward + discount * next_value - value).tolist()
    decay = np.where(cut, 0.0, discount * lambda_).tolist()
    following = 0.0
    for i in range(len(delta) - 1, -1, -1):
        delta[i] = following = delta[i] + decay[i] * following
    return np.array(delta, np.float32)


def gae_of_tensors(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float
) -> Tensor:
    """Return what `gae` returns for tensors `[B]`, on the device of `value`."""
    rewards, discounts, now, then, cuts = (x.cpu().numpy() for x in (reward, discount, value, next_value, cut))
    return torch.from_numpy(gae(rewards, discounts, now, then, cuts, lambda_)).to(value.device)


def n_step_windows(reward: Tensor, discount: Tensor, valid: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the n-step rewards and discounts of sequences, and the index of each window's last step, `[B, L]` each.

    The window of step t has m steps: n, or fewer if the sequence or the episode ends earlier. With rewards r_i and
    1-step discounts d_i, which are 0 only if the episode terminated:

        reward_t = sum_{k < m} (prod_{j < k} d_{t+j}) r_{t+k},   discount_t = prod_{j < m} d_{t+j}

    The caller bootstraps from the observation after the window's last step, t + m - 1. `valid` is False for padding;
    the valid steps of a row have to be consecutive steps of one episode. The results for padding are meaningless.
    """
    total, product, last = reward.clone(), discount.clone(), torch.arange(valid.shape[1], device=valid.device)
    last = last.expand(valid.shape).clone()
    for k in range(1, min(n_step, valid.shape[1])):
        follows = valid[:, :-k] & valid[:, k:]
        total[:, :-k] += torch.where(follows, product[:, :-k] * reward[:, k:], 0.0)
        product[:, :-k] *= torch.where(follows, discount[:, k:], 1.0)
        last[:, :-k] += follows
    return total, product, last
