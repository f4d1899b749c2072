"""The targets of MuZero's K unrolled steps, from windows of steps with stored searches."""

from __future__ import annotations

from typing import Any, NamedTuple

from drl_cli.losses.returns import n_step_windows
from drl_cli.utils.lazy import Tensor, torch


class Targets(NamedTuple):
    """What the model has to predict after k actions: value and policy for k = 0..K, the reward of each action.

    A mask is False where there is no target.
    """

    reward: Tensor
    """`[B, K]`."""
    has_reward: Tensor
    value: Tensor
    """n-step returns that bootstrap from root values, `[B, K + 1]`."""
    has_value: Tensor
    policy: Tensor
    """`[B, K + 1, A]`."""
    has_policy: Tensor
    is_past_end: Tensor
    """Whether the episode had terminated before the step, `[B, K + 1]`."""


def unroll_targets(rows: Any, n_step: int, unroll: int) -> Targets:  # Any: tensors by name
    """Return the targets of windows `[B, L]`; K is `unroll`, or L if this is less.

    After the end of an episode that terminated, rewards and values are 0, and there is no policy (MuZero, appendix G).
    A return that does not reach n steps ahead, because the window ends, bootstraps from the window's last step. Steps
    with random actions have no search: no policy is learned there, and no value that would bootstrap from them.
    """
    valid, terminated, has_root, root = (rows[name] for name in ("valid", "terminated", "has_root", "root_value"))
    length = valid.shape[1]
    is_summed = valid & (torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1) | terminated)
    total, discount, last = n_step_windows(rows["reward"], rows["discount"], is_summed, n_step)
    ahead = (last + 1).clamp(max=length - 1)
    value = torch.where(is_summed, total + discount * root.gather(1, ahead), root)
    is_known = torch.where(is_summed, (discount == 0.0) | has_root.gather(1, ahead), has_root)
    final = valid.sum(1, keepdim=True) - 1
    is_past_end = ~valid & terminated.gather(1, final)
    past_end = torch.cat([is_past_end, (is_past_end | valid & terminated)[:, -1:]], 1)
    steps = min(unroll, length)

    shown = steps + 1
    return Targets(
        torch.where(valid, rows["reward"], 0.0)[:, :steps],
        (valid | is_past_end)[:, :steps],
        first_steps(torch.where(valid, value, 0.0), shown),
        first_steps(valid & is_known, shown) | past_end[:, :shown],
        first_steps(rows["policy"], shown),
        first_steps(valid & ~rows["is_random"], shown),
        past_end[:, :shown],
    )


def first_steps(x: Tensor, num: int) -> Tensor:
    """Return the first `num` steps of a column `[B, L, ...]`, where a step of zeros follows the last one."""
    return torch.cat([x, torch.zeros_like(x[:, :1])], 1)[:, :num]
