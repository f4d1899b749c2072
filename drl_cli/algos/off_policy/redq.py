"""REDQ: Randomized Ensembled Double Q-Learning (Chen et al. 2021, arXiv 2101.05982), and DroQ.

REDQ is SAC with an ensemble of critics and many critic updates per environment step. The target is the smallest value
of a random subset of the critics. DroQ (Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient Reinforcement
Learning", arXiv 2110.02034) is REDQ with only two critics, which have dropout and layer norm.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.errors import Refused
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """The options of REDQ. `critics` is the number of critics, and `subset` the number of critics in each target."""

    tau: Fraction
    critics: Count
    subset: Count

    def __post_init__(self) -> None:
        if self.subset > self.critics:
            raise Refused(f"algo.subset={self.subset} must not be above algo.critics={self.critics}")


class Policy(SquashedPolicy):
    """The stochastic actor of SAC, without dropout."""


class Algorithm(SoftAlgorithm):
    """Learns the actor, the critics and the entropy temperature from batches. The critics may have dropout."""

    def make_critics(self) -> Any:
        return self.critics(outputs=1, actions=self.size, ensemble=self.config.critics)

    def draw(self, rows: int) -> Random:
        """Draw noise for actions, dropout masks, and `order`: the indices of the N critics in random order, `[N]`."""
        action = self.context.randn(rows, self.size, self.noise)
        order = torch.rand(self.config.critics, generator=self.noise, device=self.context.device).argsort()
        return {"action": action, "order": order, **self.critic_masks(self.critic, rows, self.noise)}

    def q(self, critic: Any, features: Tensor, action: Tensor, masks: Any) -> Tensor:  # Any: a network, masks
        """Return the values `[N, B]` that N critics give to the actions `[B, A]`."""
        q: Tensor = critic(features, action, masks).squeeze(-1)
        return q if self.config.critics > 1 else q.unsqueeze(0)  # a single critic returns [B]

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the critics' mean squared Bellman errors, and a dict of metrics and columns.

        The target is the smallest value of a random subset of the critics (REDQ, algorithm 1; DroQ, algorithm 2). The
        columns are `td_error` `[B]`, which becomes the new priorities, and `features` `[B, F]`, the features of `obs`
        for the actor's loss.
        """
        view = self.see(nets, rows)
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = self.q(nets.target.critic, next_obs, next_action, random["target_masks"])  # [N, B]
            subset = random["order"][: self.config.subset]  # the indices of the critics in the target
            smallest = next_q[subset].amin(0)
            target = rows["reward"] + rows["discount"] * (smallest - cost)
        q = self.q(nets.critic, view.learned, rows["action"], random["masks"])  # [N, B]
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: as in `q`
        """Return the mean value of all critics, `[B]`."""
        return self.q(critic, features, action, random["masks"]).mean(0)
