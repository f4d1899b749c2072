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
    return _backward_sum(reward + discount * next_value - value, np.where(cut, 0.0, discount * lambda_))


def _backward_sum(term: Array, decay: Array) -> Array:
    """Return x with x_i = term_i + decay_i x_{i+1}, float32 `[B]`; the last row has no x_{i+1}."""
    sums, decays, following = term.tolist(), decay.tolist(), 0.0
    for i in range(len(sums) - 1, -1, -1):
        sums[i] = following = sums[i] + decays[i] * following
    return np.array(sums, np.float32)


def gae_of_tensors(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float
) -> Tensor:
    """Return what `gae` returns for tensors `[B]`, on the device of `value`."""
    rewards, discounts, now, then, cuts = (x.cpu().numpy() for x in (reward, discount, value, next_value, cut))
    return torch.from_numpy(gae(rewards, discounts, now, then, cuts, lambda_)).to(value.device)


def lambda_returns_of_tensors(
    reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, lambda_: float
) -> Tensor:
    """Return lambda-returns of rows in time order, `[B]`. The last row counts as a cut.

    The equation is that of `drl_cli.losses.traces.lambda_returns`. With V(next_obs) = max_a Q(next_obs, a), the results
    are the targets of Q(lambda) (Peng & Williams 1994), which PQN uses (Gallici et al. 2024, arXiv 2407.04811).
    """
    is_last = cut.clone()
    is_last[-1] = True
    term = reward + discount * torch.where(is_last, 1.0, 1.0 - lambda_) * next_value
    decay = torch.where(is_last, 0.0, discount * lambda_)
    return torch.from_numpy(_backward_sum(term.cpu().numpy(), decay.cpu().numpy())).to(reward.device)


def vtrace_of_tensors(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    cut: Tensor,
    log_ratio: Tensor,
    rho_max: float,
    c_max: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Return V-trace's value targets and advantages of rows in time order, `[B]` each.

    The equations are those of `drl_cli.losses.traces.vtrace` (IMPALA, Espeholt et al. 2018, eq. 1). This function does
    not need pieces of equal length, and the recursion over time is in numpy, which is much faster for long rollouts.
    """
    ratio, is_last = log_ratio.exp(), cut.clone()
    is_last[-1] = True
    rho = ratio.clamp(max=rho_max)
    decay = torch.where(is_last, 0.0, discount * lambda_ * ratio.clamp(max=c_max))
    delta = rho * (reward + discount * next_value - value)
    target = value + torch.from_numpy(_backward_sum(delta.cpu().numpy(), decay.cpu().numpy())).to(value.device)
    following = torch.where(is_last, next_value, target.roll(-1))
    return target, rho * (reward + discount * following - value)


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
