"""TQC: Truncated Quantile Critics (Kuznetsov et al. 2020, arXiv 2005.04269).

TQC is SAC whose critics predict quantiles of the return. The target is the mixture of the quantiles of all critics. The
largest quantiles are dropped from the mixture, which controls the overestimation of values.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.errors import Refused
from drl_cli.losses.critics import mean, quantile_critic
from drl_cli.losses.distributional import midpoints
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Natural

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Options of TQC."""

    tau: Fraction
    critics: Count
    quantiles: Count
    dropped: Natural

    def __post_init__(self) -> None:
        if self.dropped >= self.quantiles:
            raise Refused(f"algo.dropped={self.dropped} has to be below algo.quantiles={self.quantiles}")


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    def make_critics(self) -> Any:
        config = self.config
        self.fraction = torch.from_numpy(midpoints(config.quantiles)).to(self.context.device)
        return self.critics(config.quantiles, self.size, ensemble=config.critics)

    def quantiles(self, critic: Any, features: Tensor, action: Tensor, masks: Any) -> Tensor:  # Any: a network; tensors
        """Return the quantiles `[N, B, K]` of N critics."""
        quantiles: Tensor = critic(features, action, masks)
        return quantiles if self.config.critics > 1 else quantiles.unsqueeze(0)

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the quantile regression loss of all critics against the truncated mixture (eq. 8 to 11)."""
        config, view = self.config, self.see(nets, rows)
        reward, discount = rows["reward"].unsqueeze(-1), rows["discount"].unsqueeze(-1)
        kept = config.critics * (config.quantiles - config.dropped)  # number of quantiles in the truncated mixture
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            every = self.quantiles(nets.target.critic, next_obs, next_action, random["target_masks"])
            least = every.transpose(0, 1).flatten(1).sort(-1).values[:, :kept]  # [B, N (K - dropped)]
            target = reward + discount * (least - cost.unsqueeze(-1))
        quantiles = self.quantiles(nets.critic, view.learned, rows["action"], random["masks"])
        td_error = (quantiles.mean(-1) - target.mean(-1)).abs().mean(0)
        losses = [quantile_critic(one, target, self.fraction, 1.0, rows.get("weight")) for one in quantiles]
        loss = torch.stack(losses).mean() / config.quantiles
        metrics = {"critic_loss": loss, "q_mean": mean(quantiles.mean(-1), rows.get("valid_weight"))}
        return loss, metrics | {"td_error": td_error, "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Return the mean `[B]` of all quantiles of all critics, without truncation (eq. 12)."""
        return self.quantiles(critic, features, action, random["masks"]).mean((0, 2))
