"""TQC: Truncated Quantile Critics (Kuznetsov et al. 2020, arXiv 2005.04269).

TQC is SAC whose critics predict quantiles of the return. The target is a mixture of the quantiles of all critics
without the largest quantiles, which controls the overestimation of values.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import Batch
from drl_cli.algos.continuous.actors import SquashedPolicy, make_network
from drl_cli.algos.continuous.soft import Random, SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import quantile_critic
from drl_cli.losses.distributional import midpoints
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Nets
from drl_cli.optim.group import Refused
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Natural

if TYPE_CHECKING:
    from torch import nn

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(SoftConfig):
    """Options of TQC."""

    tau: Fraction = 0.005
    critics: Count = 5
    quantiles: Count = 25
    dropped: Natural = 2

    def __post_init__(self) -> None:
        if self.dropped >= self.quantiles:
            raise Refused(f"algo.dropped={self.dropped} has to be below algo.quantiles={self.quantiles}")


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    def make_networks(self, network: NetworkConfig, spec: EnvSpec) -> "tuple[nn.Module, nn.Module]":
        config, size = self.config, spec.action.size
        self.fraction = torch.from_numpy(midpoints(config.quantiles)).to(self.context.device)
        critics = make_network(network, spec, config.quantiles, size, ensemble=config.critics)
        return make_network(network, spec, 2 * size), critics

    def quantiles(self, critic: Any, obs: Any, action: Tensor) -> Tensor:  # Any: a network; see torso
        """Return the quantiles `[N, B, K]` of N critics."""
        quantiles: Tensor = critic(obs, action)
        return quantiles if self.config.critics > 1 else quantiles.unsqueeze(0)

    def critic_loss(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the quantile regression loss of all critics against the truncated mixture (eq. 8 to 11)."""
        config, reward, discount = self.config, batch["reward"].unsqueeze(-1), batch["discount"].unsqueeze(-1)
        kept = config.critics * (config.quantiles - config.dropped)
        with torch.no_grad():
            next_action, cost = self.next_action(nets, batch, random)
            pooled = self.quantiles(nets.target.critic, batch["next_obs"], next_action).transpose(0, 1).flatten(1)
            least = pooled.sort(-1).values[:, :kept]  # [B, N (K - dropped)]
            target = reward + discount * (least - cost.unsqueeze(-1))
        quantiles = self.quantiles(nets.critic, batch["obs"], batch["action"])
        weight, td_error = batch.get("weight"), (quantiles.mean(-1) - target.mean(-1)).abs().mean(0)
        losses = [quantile_critic(one, target, self.fraction, 1.0, weight) for one in quantiles]
        loss = torch.stack(losses).mean() / config.quantiles
        return loss, {"critic_loss": loss, "q_mean": quantiles.mean(), "td_error": td_error}

    def value(self, critic: Any, obs: Any, action: Tensor, random: Random) -> Tensor:  # Any: a network; see torso
        """Return the mean of all quantiles of all critics, which are not truncated here (eq. 12)."""
        return self.quantiles(critic, obs, action).mean((0, 2))
