"""The targets of MuZero's unrolled model.

A batch has B windows of L steps. Each step stores the result of a search, unless its action was random.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from drl_cli.losses.returns import n_step_windows
from drl_cli.utils.lazy import Tensor, torch


class Targets(NamedTuple):
    """The targets of a model that is unrolled over K actions: K rewards, and K + 1 values and policies.

    `has_reward`, `has_value` and `has_policy` are masks of the targets, bool `[B, K]` or `[B, K + 1]`. They are False
    where a target is unknown, so that the loss must leave it out.
    """

    reward: Tensor
    """The reward of each action, `[B, K]`."""
    has_reward: Tensor
    value: Tensor
    """n-step returns from each step, which bootstrap from the root values of searches, `[B, K + 1]`."""
    has_value: Tensor
    policy: Tensor
    """The policies of the searches, `[B, K + 1, A]`."""
    has_policy: Tensor
    is_past_end: Tensor
    """Whether the episode had terminated before the step, bool `[B, K + 1]`."""


def unroll_targets(rows: Any, n_step: int, unroll: int) -> Targets:  # Any: tensors by name
    """Return the targets of a batch of windows, whose columns are `[B, L, ...]`. K is `unroll`, or L if L is smaller.

    A value is the n-step return: the next n rewards, and then the root value of the step after them. If the window ends
    earlier, the return bootstraps from the window's last step. The value is unknown if the action of the bootstrap step
    was random, because no search then computed a root value. A step with a random action also has no policy target.
    After the end of an episode that terminated, rewards and values are 0, and there is no policy (MuZero, appendix G).
    """
    valid, terminated, has_root, root = (rows[name] for name in ("valid", "terminated", "has_root", "root_value"))
    length = valid.shape[1]
    next_valid = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
    is_summed = valid & (next_valid | terminated)  # an n-step return only contains rewards whose next state is known
    total, discount, last_summed = n_step_windows(rows["reward"], rows["discount"], is_summed, n_step)
    bootstrap = (last_summed + 1).clamp(max=length - 1)  # the step whose root value follows the summed rewards
    value = torch.where(is_summed, total + discount * root.gather(1, bootstrap), root)
    bootstrap_is_known = (discount == 0.0) | has_root.gather(1, bootstrap)  # a discount of 0 needs no root value
    is_known = torch.where(is_summed, bootstrap_is_known, has_root)
    last_valid = valid.sum(1, keepdim=True) - 1  # the index of the last valid step, [B, 1]
    is_past_end = ~valid & terminated.gather(1, last_valid)  # padding after an episode that terminated
    next_is_past_end = is_past_end | (valid & terminated)
    past_end = torch.cat([is_past_end, next_is_past_end[:, -1:]], 1)  # [B, L + 1]: also the state after the last step
    num_actions = min(unroll, length)
    num_states = num_actions + 1
    return Targets(
        reward=torch.where(valid, rows["reward"], 0.0)[:, :num_actions],
        has_reward=(valid | is_past_end)[:, :num_actions],
        value=first_steps(torch.where(valid, value, 0.0), num_states),
        has_value=first_steps(valid & is_known, num_states) | past_end[:, :num_states],
        policy=first_steps(rows["policy"], num_states),
        has_policy=first_steps(valid & ~rows["is_random"], num_states),
        is_past_end=past_end[:, :num_states],
    )


def first_steps(x: Tensor, num: int) -> Tensor:
    """Return the first `num` steps `[B, num, ...]` of a column `[B, L, ...]`. If `num` is L + 1, the last step is 0."""
    zero_step = torch.zeros_like(x[:, :1])
    return torch.cat([x, zero_step], 1)[:, :num]
