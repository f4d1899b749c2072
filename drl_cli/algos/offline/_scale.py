"""The mean absolute Q value. TD3+BC, ReBRAC and FQL divide the Q term of the actor's loss by this number."""

from drl_cli.losses.critics import mean
from drl_cli.optim.context import Context
from drl_cli.utils.lazy import Tensor


def mean_abs(q: Tensor, valid: Tensor | None, context: Context) -> Tensor:
    """Return the mean of |Q| over the batches of all trainers, a scalar without a gradient.

    `q` `[B]` are the Q values. `valid` `[B]` weights them: 0 for the padding of sequences. None weights all equally.
    """
    scale = mean(q.detach().abs(), valid)
    context.group.mean_(scale)
    return scale
