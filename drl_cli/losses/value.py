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


def q_target(reward: "torch.Tensor", discount: "torch.Tensor", next_q: "torch.Tensor") -> "torch.Tensor":
    """Q-learning target r + discount max_a Q'(s', a), `[B]`; reward, discount `[B]`, next_q `[B, A]`.

    `discount` is gamma**k over k steps and 0 only where the episode terminated (DQN, Mnih et al. 2015, algorithm 1).
    """
    return reward + discount * next_q.max(-1).values


def double_q_target(
    reward: "torch.Tensor", discount: "torch.Tensor", next_q: "torch.Tensor", next_online: "torch.Tensor"
) -> "torch.Tensor":
    """Double Q-learning target r + discount Q'(s', argmax_a Q(s', a)), `[B]`.

    reward, discount `[B]`; next_q of the target and next_online of the online network `[B, A]`
    (van Hasselt et al. 2016, eq. 4).
    """
    return reward + discount * next_q.gather(-1, next_online.argmax(-1, keepdim=True)).squeeze(-1)


def half_square(error: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Half the squared error and its derivative, both of the error's shape."""
    return 0.5 * error.square(), error


def huber(error: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Huber loss and its derivative, both of the error's shape: e^2 / 2 within [-1, 1], |e| - 1/2 outside.

    Its derivative is the error clipped to [-1, 1] (Mnih et al. 2015, methods).
    """
    slope = error.clamp(-1.0, 1.0)
    return slope * (error - 0.5 * slope), slope
