"""TD3+BC (Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", arXiv 2106.06860).

TD3+BC is TD3 whose actor also imitates the data's actions. The actor's loss divides Q by its mean absolute value, so
that `alpha` does not depend on the scale of the rewards.
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
    """Options of TD3+BC."""

    alpha: NonNegative


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(td3.Algorithm):
    """Learns actor and critics in a trainer. The networks, the critics' loss and the update are those of TD3."""

    averages_in_loss = True

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return -alpha Q(s, a) / mean |Q| plus the squared distance to the data's action (eq. 3 and 5)."""
        features, valid = rows["features"], rows.get("valid_weight")
        action = nets.actor(features).tanh()
        q = nets.frozen.critic(features, action, random["masks"], first=1).squeeze(-1)
        distance = mean((action - rows["action"]).square().mean(-1), valid)
        scale = self.config.alpha / mean_abs(q, valid, self.context)
        loss = distance - scale * mean(q, valid)
        return loss, {"actor_loss": loss, "distance": distance}
