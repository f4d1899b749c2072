"""ReBRAC (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning").

The paper is arXiv 2305.09836. ReBRAC is TD3+BC with layer norm in the critics and a second penalty. The second penalty
lowers the critics' targets where the next action is far from the data's next action. Each penalty has a weight.

The data's next action is the column `next_action` (`DATA`). Readers of datasets and workers add this column. Workers
therefore send the rows of an episode to replay when the episode ends.
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
from drl_cli.utils.ranges import NonNegative, Positive

if TYPE_CHECKING:
    from drl_cli.networks.mlp_module import Critics

ACTIONS = td3.ACTIONS
DATA = ("next_action",)


@dataclass(frozen=True, kw_only=True)
class Config(td3.Config):
    """Options of ReBRAC."""

    lr: Positive
    actor_penalty: NonNegative
    critic_penalty: NonNegative


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(td3.Algorithm):
    """Learns actor and critics in a trainer. The update is that of TD3."""

    averages_in_loss = True

    def critics(self, outputs: int, actions: int, ensemble: int = 1, norms: bool = True) -> "Critics":
        return super().critics(outputs, actions, ensemble, norms)

    def next_value(self, rows: Batch, next_action: Tensor, next_q: Tensor) -> Tensor:
        """Return `next_q` minus the penalty for the distance from the data's next action, `[B]` (eq. 5)."""
        if "next_action" not in rows:
            return next_q
        distance: Tensor = (next_action - rows["next_action"]).square().sum(-1)
        penalty: Tensor = self.config.critic_penalty * distance
        return next_q - penalty

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the penalty minus the smaller Q, which is divided by its mean absolute value (eq. 4)."""
        features, valid = rows["features"], rows.get("valid_weight")
        action = nets.actor(features).tanh()
        q = nets.frozen.critic(features, action, random["masks"]).squeeze(-1).amin(0)
        distance = mean((action - rows["action"]).square().sum(-1), valid)
        loss = self.config.actor_penalty * distance - mean(q, valid) / mean_abs(q, valid, self.context)
        return loss, {"actor_loss": loss, "distance": distance}
