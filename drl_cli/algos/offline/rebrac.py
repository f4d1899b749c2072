"""ReBRAC (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning").

The paper is arXiv 2305.09836. ReBRAC is TD3 with layer norm in the critics and two penalties on the squared distance
between the actor's action and the data's action. One penalty is in the actor's loss, as in TD3+BC. The other lowers the
critics' targets by the distance in the next state. Each penalty has a weight.

The data's action in the next state is the column `next_action`. Both the reader of a dataset and the workers add it, so
workers send the transitions of an episode to replay when the episode ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import td3
from drl_cli.algos.off_policy.td3 import explore, noise, policy
from drl_cli.algos.offline.td3_bc import mean_abs
from drl_cli.api import torch

ACTIONS = td3.ACTIONS
DATA = ("next_action",)
"""Columns that are computed from whole episodes."""
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(td3.Config):
    """The options of TD3, and the weights of the two penalties."""

    actor_penalty: drl.NonNegative
    critic_penalty: drl.NonNegative


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return TD3's networks, with layer norm in the critics."""
    encoder, size, normed = drl.encoder(network, spec), spec.action.size, replace(network, layer_norm=True)
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, size, network, squashed=True),
        "critic": drl.Critic(encoder.size, size, normed, ensemble=2),
    }


class Algorithm(td3.Algorithm):
    """Trains the actor and the critics as TD3 does, with both penalties."""

    def next_value(self, rows: drl.Batch, action: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Return `q` minus the penalty on the squared distance of the next `action` from the data's, `[B]`."""
        if "next_action" not in rows:  # in `drl_cli.testing`, whose batches have no columns of a dataset
            return q
        distance: torch.Tensor = (action - rows["next_action"]).square().sum(-1)
        penalty: torch.Tensor = self.config.critic_penalty * distance
        return q - penalty

    def actor_loss(self, rows: drl.Batch, x: torch.Tensor, masks: Sequence[torch.Tensor]) -> drl.Metrics:
        """Return the actor's loss, and the mean squared distance of its actions from the batch's.

        The loss is the penalty on this distance, minus the mean Q divided by the mean |Q|. Q is the smaller value of
        both critics.
        """
        valid = rows.get("valid_weight")  # 0 for padding
        action = self.nets.actor(x)
        q = self.nets.frozen.critic(x, action, masks).amin(0)
        distance = drl.losses.mean((action - rows["action"]).square().sum(-1), valid)
        loss = self.config.actor_penalty * distance - drl.losses.mean(q, valid) / mean_abs(q, valid, self.context)
        return {"actor_loss": loss, "distance": distance}
