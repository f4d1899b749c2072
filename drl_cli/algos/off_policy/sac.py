"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905).

SAC has twin critics, a stochastic actor, and a learned entropy temperature alpha. The actor is a tanh-Gaussian: an
action is the tanh of a Gaussian sample. The default target entropy is minus the number of action dimensions.
"""

from dataclasses import dataclass
from typing import Any, Literal

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import ColouredPolicy, Random
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """The options of SAC. After each update, the target networks move by the fraction `tau` toward the critics.

    `noise_kind` chooses exploration noise that is independent in time (gaussian), or correlated in time (pink).
    """

    tau: Fraction
    noise_kind: Literal["gaussian", "pink"]


class Policy(ColouredPolicy):
    """The stochastic actor of SAC."""


class Algorithm(SoftAlgorithm):
    """Learns the actor, the critics and the entropy temperature from batches."""

    has_own_weights = True
    steps_at_once = True

    def make_critics(self) -> Any:
        return self.critics(outputs=1, actions=self.size, ensemble=2)

    def draws(self, rows: int, trains_actor: bool) -> tuple[Random, Random]:
        # One call draws the noise for both losses. A seed gives the same run only if the actor gets the first half.
        actor_noise, critic_noise = self.context.randn(rows, 2 * self.size, self.noise).chunk(2, -1)
        actor_masks = self.critic_masks(self.critic, rows, self.noise)
        critic_masks = self.critic_masks(self.critic, rows, self.noise)
        return {"action": critic_noise, **critic_masks}, {"action": actor_noise, **actor_masks}

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the critics' mean squared soft Bellman errors (eq. 5), and a dict of metrics and columns.

        The columns are `td_error` `[B]`, which becomes the new priorities, and `features` `[B, F]`, the features of
        `obs` for the actor's loss.
        """
        view = self.see(nets, rows)
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)  # [2, B]
            target = rows["reward"] + rows["discount"] * (next_q.amin(0) - cost)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:
        """Return the smaller value of the two critics, `[B]`."""
        value: Tensor = critic(features, action, random["masks"]).squeeze(-1).amin(0)
        return value
