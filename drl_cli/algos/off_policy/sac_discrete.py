"""Soft Actor-Critic for discrete actions (Christodoulou 2019, "... for Discrete Action Settings", arXiv 1910.07207).

The actor returns a logit for each action, and each of the twin critics returns a value for each action. Therefore
expectations over actions are exact sums, not samples. The target entropy is a fraction of the largest possible entropy,
which is the logarithm of the number of legal actions.
"""

import math
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import Random
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.algos.policy import NetworkPolicy, sample_choices
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.losses.distributions import Categorical
from drl_cli.losses.policy import permitted
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.gradients import Nets
from drl_cli.types import Columns, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Options of discrete SAC."""

    tau: Fraction
    target_entropy: Fraction


class Policy(NetworkPolicy):
    """The categorical actor."""

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        logits, memory = self.forward(obs, last)
        return {"action": sample_choices(permitted(logits, action_mask(obs)), self.action.choices, self.rng), **memory}


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    actor_outputs = 1
    has_own_weights = True
    steps_at_once = True
    samples_actions = False

    def make_critics(self) -> Any:
        return self.mlp(self.size, ensemble=2)

    def draw(self, rows: int) -> Random:
        return self.critic_masks(self.critic, rows, self.noise)

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of both critics, with the exact soft value of the next state (eq. 10).

        The extra column `least` `[B, A]` is the smaller value of the two critics for each action.
        """
        view = self.see(nets, rows)
        with torch.no_grad():
            policy = Categorical(nets.actor(view.next_obs), rows["mask_next"])
            next_q = nets.target.critic(self.see_target(nets, rows, view).next_obs, random["target_masks"]).amin(0)
            soft = next_q - nets.log_alpha.exp() * policy.log_probs
            target = rows["reward"] + rows["discount"] * (policy.log_probs.exp() * soft).sum(-1)
        values = nets.critic(view.learned, random["masks"])  # [2, B, A]
        q = values.gather(-1, rows["action"].view(1, -1, 1).expand(2, -1, 1)).squeeze(-1)
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs, "least": values.amin(0)}

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (eq. 12) plus the temperature's loss (eq. 11), and a dict with metrics.

        The actor's loss is an exact expectation over all actions.
        """
        features, weight, alpha = rows["features"], rows.get("valid_weight"), nets.log_alpha.detach().exp()
        policy = Categorical(nets.actor(features), rows["mask_now"])
        cost = (policy.log_probs.exp() * (alpha * policy.log_probs - rows["least"])).sum(-1)
        actor_loss, entropy = mean(cost, weight), policy.entropy()
        wanted = self.entropy_target(rows["mask_now"])
        alpha_loss = -(nets.log_alpha * mean(wanted - entropy.detach(), weight)).sum()
        metrics = {"actor_loss": actor_loss, "alpha": alpha.squeeze(), "entropy": mean(entropy, weight)}
        return actor_loss + alpha_loss, metrics

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:
        raise NotImplementedError("the actor's loss is an expectation over all actions")

    def entropy_target(self, mask: Tensor | None) -> Tensor | float:
        """Return the target entropy in nats: one number, or one per row `[N]` with legal-action masks `[N, A]`."""
        share: float = self.config.target_entropy
        if mask is None:
            return share * math.log(self.size)
        return share * mask.sum(-1).clamp(min=1).log()
