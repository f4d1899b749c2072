"""TD3+BC (Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", arXiv 2106.06860).

TD3+BC is TD3 with a second term in the actor's loss: the squared distance to the data's action. The first term, Q, is
divided by its mean absolute value, so that its weight `alpha` does not depend on the scale of the rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import drl_cli.api as drl
from drl_cli.algos.off_policy import td3
from drl_cli.algos.off_policy.td3 import explore, networks, noise, policy
from drl_cli.api import torch

ACTIONS, TABLES = td3.ACTIONS, td3.TABLES
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(td3.Config):
    """The options of TD3, and the weight `alpha` of Q in the actor's loss."""

    alpha: drl.NonNegative


class Algorithm(td3.Algorithm):
    """Trains the actor and the critics as TD3 does, but with TD3+BC's loss of the actor."""

    def actor_loss(self, rows: drl.Batch, x: torch.Tensor, masks: Sequence[torch.Tensor]) -> drl.Metrics:
        """Return the actor's loss (eq. 3 and 5), and the mean squared distance of its actions to the batch's.

        The loss is this distance, minus alpha Q(s, pi(s)) / mean |Q|, where Q is the first critic.
        """
        valid = rows.get("valid_weight")  # 0 for padding
        action = self.nets.actor(x)
        q = self.nets.frozen.critic(x, action, masks, first=1)
        distance = drl.losses.mean((action - rows["action"]).square().mean(-1), valid)
        scale = self.config.alpha / mean_abs(q, valid, self.context)
        return {"actor_loss": distance - scale * drl.losses.mean(q, valid), "distance": distance}


def mean_abs(q: torch.Tensor, valid: torch.Tensor | None, context: drl.Context) -> torch.Tensor:
    """Return the mean of |Q| over the batches of all trainers, a scalar without a gradient.

    `q` `[B]` are the Q values. `valid` `[B]` weights them: 0 for the padding of sequences. None weights all equally.
    """
    scale = drl.losses.mean(q.detach().abs(), valid)
    context.group.mean_(scale)
    return scale
