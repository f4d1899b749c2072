"""TQC: Truncated Quantile Critics (Kuznetsov et al. 2020, arXiv 2005.04269).

TQC is SAC whose critics predict quantiles of the return. The target consists of the quantiles of all critics together,
without the largest quantiles. Leaving these out reduces the overestimation of values.
"""

from dataclasses import dataclass
from typing import Any, Literal

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import ColouredPolicy, Random
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
    """The options of TQC: `critics` critics predict `quantiles` quantiles each.

    The target leaves out the `critics` * `dropped` largest quantiles of all critics together. `noise_kind` chooses
    exploration noise that is independent in time (gaussian), or correlated in time (pink).
    """

    tau: Fraction
    noise_kind: Literal["gaussian", "pink"]
    critics: Count
    quantiles: Count
    dropped: Natural

    def __post_init__(self) -> None:
        if self.dropped >= self.quantiles:
            raise Refused(f"algo.dropped={self.dropped} has to be below algo.quantiles={self.quantiles}")


class Policy(ColouredPolicy):
    """The stochastic actor of SAC."""


class Algorithm(SoftAlgorithm):
    """Learns the actor, the critics and the entropy temperature from batches."""

    def make_critics(self) -> Any:
        config = self.config
        self.fraction = torch.from_numpy(midpoints(config.quantiles)).to(self.context.device)
        return self.critics(config.quantiles, actions=self.size, ensemble=config.critics)

    def quantiles(self, critic: Any, features: Tensor, action: Tensor, masks: Any) -> Tensor:  # Any: a network, masks
        """Return the K quantiles of the return that each of N critics predicts, `[N, B, K]`."""
        quantiles: Tensor = critic(features, action, masks)
        return quantiles if self.config.critics > 1 else quantiles.unsqueeze(0)  # a single critic returns [B, K]

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean quantile regression loss of all critics, and a dict with metrics and columns (eq. 8 to 11).

        The target consists of the smallest quantiles of all critics together. The columns are `td_error` `[B]`, which
        becomes the new priorities, and `features` `[B, F]`, the features of `obs` for the actor's loss.
        """
        config, view = self.config, self.see(nets, rows)
        reward, discount = rows["reward"].unsqueeze(-1), rows["discount"].unsqueeze(-1)
        num_kept = config.critics * (config.quantiles - config.dropped)  # number of quantiles in the target
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_quantiles = self.quantiles(nets.target.critic, next_obs, next_action, random["target_masks"])
            pooled = next_quantiles.transpose(0, 1).flatten(1)  # [B, N K], the quantiles of all critics
            smallest = pooled.sort(-1).values[:, :num_kept]
            target = reward + discount * (smallest - cost.unsqueeze(-1))  # [B, num_kept]
        quantiles = self.quantiles(nets.critic, view.learned, rows["action"], random["masks"])  # [N, B, K]
        td_error = (quantiles.mean(-1) - target.mean(-1)).abs().mean(0)
        weight = rows.get("weight")
        losses = [quantile_critic(own, target, self.fraction, weight=weight) for own in quantiles]  # of each critic
        loss = torch.stack(losses).mean() / config.quantiles  # `quantile_critic` sums over the K quantiles
        metrics = {"critic_loss": loss, "q_mean": mean(quantiles.mean(-1), rows.get("valid_weight"))}
        return loss, metrics | {"td_error": td_error, "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Return the mean of all quantiles of all critics, `[B]`. No quantiles are dropped here (eq. 12)."""
        return self.quantiles(critic, features, action, random["masks"]).mean((0, 2))
