"""The mean absolute Q value. TD3+BC, ReBRAC and FQL divide the Q term of the actor's loss by this number."""

import drl_cli.api as drl
from drl_cli.api import torch


def mean_abs(q: torch.Tensor, valid: torch.Tensor | None, context: drl.Context) -> torch.Tensor:
    """Return the mean of |Q| over the batches of all trainers, a scalar without a gradient.

    `q` `[B]` are the Q values. `valid` `[B]` weights them: 0 for the padding of sequences. None weights all equally.
    """
    scale = drl.losses.mean(q.detach().abs(), valid)
    context.group.mean_(scale)
    return scale
