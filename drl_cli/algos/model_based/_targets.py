"""The targets of MuZero's K unrolled steps, from windows of steps with stored searches."""

from __future__ import annotations

from typing import Any, NamedTuple

from drl_cli.losses.returns import n_step_windows
from drl_cli.utils.lazy import Tensor, torch


class Targets(NamedTuple):
    """The targets of K unrolled steps: values and policies after k = 0, ..., K actions, and the reward of each action.

    The masks `has_...`, bool, have the first two axes of their target. They are False where there is no target.
    """

    reward: Tensor
    """The rewards, `[B, K]`."""
    has_reward: Tensor
    value: Tensor
    """n-step returns that bootstrap from root values, `[B, K + 1]`."""
    has_value: Tensor
    policy: Tensor
    """The policies of the searches, `[B, K + 1, A]`."""
    has_policy: Tensor
    is_past_end: Tensor
    """Whether the episode had terminated before the step, bool `[B, K + 1]`."""


def unroll_targets(rows: Any, n_step: int, unroll: int) -> Targets:  # Any: tensors by name
    """Return the targets of windows `[B, L]`. K is the smaller one of `unroll` and L.

    After the end of an episode that terminated, rewards and values are 0, and there is no policy (MuZero, appendix G).
    If the window ends before n steps, the return bootstraps from the window's last step. Steps with random actions have
    no search. They have no policy target, and a value target that would bootstrap from them is masked.
    """
    valid, terminated, has_root, root = (rows[name] for name in ("valid", "terminated", "has_root", "root_value"))
    length = valid.shape[1]
    next_valid = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
    is_summed = valid & (next_valid | terminated)  # steps whose reward enters a return
    total, discount, last = n_step_windows(rows["reward"], rows["discount"], is_summed, n_step)
    bootstrap = (last + 1).clamp(max=length - 1)  # the step whose root value follows the summed rewards
    value = torch.where(is_summed, total + discount * root.gather(1, bootstrap), root)
    is_known = torch.where(is_summed, (discount == 0.0) | has_root.gather(1, bootstrap), has_root)
    final = valid.sum(1, keepdim=True) - 1
    is_past_end = ~valid & terminated.gather(1, final)
    past_end = torch.cat([is_past_end, (is_past_end | valid & terminated)[:, -1:]], 1)
    steps = min(unroll, length)
    states = steps + 1
    return Targets(
        reward=torch.where(valid, rows["reward"], 0.0)[:, :steps],
        has_reward=(valid | is_past_end)[:, :steps],
        value=first_steps(torch.where(valid, value, 0.0), states),
        has_value=first_steps(valid & is_known, states) | past_end[:, :states],
        policy=first_steps(rows["policy"], states),
        has_policy=first_steps(valid & ~rows["is_random"], states),
        is_past_end=past_end[:, :states],
    )


def first_steps(x: Tensor, num: int) -> Tensor:
    """Append a step of zeros to a column `[B, L, ...]`, and return the first `num` <= L + 1 steps."""
    return torch.cat([x, torch.zeros_like(x[:, :1])], 1)[:, :num]
