"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905).

SAC has twin critics, a tanh-Gaussian actor, and a learned temperature. The default target entropy is -dim(A).
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Options of SAC."""

    tau: Fraction


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    has_own_weights = True
    steps_at_once = True

    def make_critics(self) -> Any:
        return self.critics(1, self.size, ensemble=2)

    def draws(self, rows: int, trains_actor: bool) -> tuple[Random, Random]:
        actor_noise, critic_noise = self.context.randn(rows, 2 * self.size, self.noise).chunk(2, -1)
        actor_masks, critic_masks = (self.critic_masks(self.critic, rows, self.noise) for _ in range(2))
        return {"action": critic_noise, **critic_masks}, {"action": actor_noise, **actor_masks}

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared soft Bellman error of both critics (eq. 5 and 6)."""
        view = self.see(nets, rows)
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)  # [2, B]
            target = rows["reward"] + rows["discount"] * (next_q.amin(0) - cost)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:
        """Return the smaller value of the two critics, `[B]`."""
        value: Tensor = critic(features, action, random["masks"]).squeeze(-1).amin(0)
        return value
