"""TD3+BC (Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", arXiv 2106.06860).

TD3+BC is TD3 with a second term in the actor's loss: the squared distance to the data's action. The first term, Q, is
divided by its mean absolute value, so that its weight `alpha` does not depend on the scale of the rewards.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy import td3
from drl_cli.algos.off_policy._actors import DeterministicPolicy, Random
from drl_cli.algos.offline._scale import mean_abs
from drl_cli.losses.critics import mean
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import NonNegative

ACTIONS, TABLES = td3.ACTIONS, td3.TABLES


@dataclass(frozen=True, kw_only=True)
class Config(td3.Config):
    """The options of TD3, and the weight `alpha` of Q in the actor's loss."""

    alpha: NonNegative


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(td3.Algorithm):
    """Trains the actor and the critics as TD3 does, but with TD3+BC's loss of the actor."""

    averages_in_loss = True

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (a scalar, eq. 3 and 5), and metrics.

        The loss is the mean squared difference between pi(s) and the batch's action, minus alpha Q(s, pi(s)) / mean
        |Q|, where Q is the first critic.
        """
        features, valid = rows["features"], rows.get("valid_weight")  # `valid` is 0 for padding
        action = nets.actor(features).tanh()
        q = nets.frozen.critic(features, action, random["masks"], first=1).squeeze(-1)  # [B], of the first critic
        difference = action - rows["action"]
        distance = mean(difference.square().mean(-1), valid)
        scale = self.config.alpha / mean_abs(q, valid, self.context)
        loss = distance - scale * mean(q, valid)
        return loss, {"actor_loss": loss, "distance": distance}
