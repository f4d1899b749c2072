"""The scale of the Q values. TD3+BC, ReBRAC and FQL divide the Q term of the actor's loss by this scale."""

from drl_cli.losses.critics import mean
from drl_cli.optim.context import Context
from drl_cli.utils.lazy import Tensor


def mean_abs(q: Tensor, valid: Tensor | None, context: Context) -> Tensor:
    """Return the mean |Q| over the valid rows of all trainers, `[]`, without a gradient; `q` and `valid` are `[B]`."""
    scale = mean(q.detach().abs(), valid)
    context.group.mean_(scale)
    return scale
