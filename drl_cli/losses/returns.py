"""Advantages and returns along the time axis: of a rollout in numpy, of sequences in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from drl_cli.types import Array
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


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


def n_step_windows(reward: Tensor, discount: Tensor, valid: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
    """From the steps of sequences `[B, L]` their n-step rewards and discounts, and each window's last step, int64.

    A window reaches from its step over up to n steps, and ends before that where the sequence or its episode does.
    With discounts d_i of single steps, 0 only where the episode terminated:

        reward_t = sum_{k < m} (prod_{j < k} d_{t+j}) r_{t+k},   discount_t = prod_{j < m} d_{t+j},   m <= n steps

    so that the bootstrap is from what comes after the window's last step, t + m - 1. `valid` is False for padding;
    the valid steps of a row are consecutive steps of one episode. The results for padding are meaningless.
    """
    total, product, last = reward.clone(), discount.clone(), torch.arange(valid.shape[1], device=valid.device)
    last = last.expand(valid.shape).clone()
    for k in range(1, min(n_step, valid.shape[1])):
        follows = valid[:, :-k] & valid[:, k:]
        total[:, :-k] += torch.where(follows, product[:, :-k] * reward[:, k:], 0.0)
        product[:, :-k] *= torch.where(follows, discount[:, k:], 1.0)
        last[:, :-k] += follows
    return total, product, last
