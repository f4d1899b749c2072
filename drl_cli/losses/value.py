"""Value targets and losses, as pure functions of batched tensors."""

from drl_cli.utils.lazy import torch


def soft_target(
    reward: "torch.Tensor",
    discount: "torch.Tensor",
    next_q: "torch.Tensor",
    next_log_prob: "torch.Tensor",
    alpha: "torch.Tensor",
) -> "torch.Tensor":
    """Soft Bellman target r + discount (min_i Q_i(s', a') - alpha log pi(a'|s')), `[B]`.

    reward, discount, next_log_prob `[B]`, next_q `[N, B]`. `discount` is gamma**k over k steps and 0 only where the
    episode terminated, so a truncated episode bootstraps (SAC, Haarnoja et al. 2018, eq. 3 and 5).
    """
    return reward + discount * (next_q.min(0).values - alpha * next_log_prob)


def ensemble_mse(
    q: "torch.Tensor", target: "torch.Tensor", weight: "torch.Tensor | None" = None
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Sum over the N critics of the mean squared error, and its gradient; q `[N, B]`, target and weight `[B]`.

    `weight` multiplies each row's squared error (prioritized replay, Schaul et al. 2015, algorithm 1); the mean is
    still over B rows.
    """
    error = q - target
    weighted = error if weight is None else weight * error
    return (weighted * error).sum() / q.shape[1], weighted * (2.0 / q.shape[1])
