"""ReBRAC (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning").

The paper is arXiv 2305.09836. ReBRAC is TD3 with layer norm in the critics and two penalties on the squared distance
between the actor's action and the data's action. One penalty is in the actor's loss, as in TD3+BC. The other lowers the
critics' targets by the distance in the next state. Each penalty has a weight.

The data's action in the next state is the column `next_action`. Both the reader of a dataset and the workers add it, so
workers send the transitions of an episode to replay when the episode ends.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy import td3
from drl_cli.algos.off_policy._actors import DeterministicPolicy, Random
from drl_cli.algos.offline._scale import mean_abs
from drl_cli.losses.critics import mean
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import NonNegative

if TYPE_CHECKING:
    from drl_cli.networks.mlp_module import Critics

ACTIONS = td3.ACTIONS
DATA = ("next_action",)
"""Columns that are computed from whole episodes."""


@dataclass(frozen=True, kw_only=True)
class Config(td3.Config):
    """The options of TD3, and the weights of the two penalties."""

    actor_penalty: NonNegative
    critic_penalty: NonNegative


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(td3.Algorithm):
    """Trains the actor and the critics as TD3 does, with both penalties."""

    averages_in_loss = True

    def critics(self, outputs: int, actions: int, ensemble: int = 1, norms: bool = True) -> "Critics":
        """Return a new critic, as the base class does, but with layer norm by default."""
        return super().critics(outputs, actions, ensemble=ensemble, norms=norms)

    def next_value(self, rows: Batch, next_action: Tensor, next_q: Tensor) -> Tensor:
        """Return Q of the next actions minus the penalty on their squared distance from the data's, `[B]`.

        `next_action` `[B, A]` are the actions of the target actor, with noise, and `next_q` `[B]` are their values.
        """
        if "next_action" not in rows:  # in `drl_cli.testing`, whose batches have no columns of a dataset
            return next_q
        distance: Tensor = (next_action - rows["next_action"]).square().sum(-1)
        penalty: Tensor = self.config.critic_penalty * distance
        return next_q - penalty

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (a scalar), and metrics.

        The loss is the penalty on the squared distance from the batch's actions, minus the mean Q divided by the mean
        |Q|. Q is the smaller value of both critics.
        """
        features, valid = rows["features"], rows.get("valid_weight")  # `valid` is 0 for padding
        action = nets.actor(features).tanh()
        q = nets.frozen.critic(features, action, random["masks"]).squeeze(-1).amin(0)
        difference = action - rows["action"]
        distance = mean(difference.square().sum(-1), valid)
        penalty = self.config.actor_penalty * distance
        loss = penalty - mean(q, valid) / mean_abs(q, valid, self.context)
        return loss, {"actor_loss": loss, "distance": distance}
