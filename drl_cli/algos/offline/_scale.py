"""The scale of Q values, by which TD3+BC, ReBRAC and FQL divide the actor's loss."""

from drl_cli.losses.critics import mean
from drl_cli.optim.context import Context
from drl_cli.utils.lazy import Tensor


def mean_size(q: Tensor, valid: Tensor | None, context: Context) -> Tensor:
    """Return the mean |Q| over the valid rows of all trainers, `[]`, without a gradient; `q` and `valid` are `[B]`."""
    size = mean(q.detach().abs(), valid)
    context.group.mean_(size)
    return size
