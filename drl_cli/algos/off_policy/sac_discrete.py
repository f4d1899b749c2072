"""Soft Actor-Critic for discrete actions (Christodoulou 2019, "... for Discrete Action Settings", arXiv 1910.07207).

The actor returns a logit for each action, and each of the two critics returns a value for each action. Expectations
over actions are therefore computed as sums over all actions, without sampling. The target entropy is a fraction of the
largest possible entropy, which is the logarithm of the number of legal actions.
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
    """The options of discrete SAC. `target_entropy` is a fraction of the largest possible entropy."""

    tau: Fraction
    target_entropy: Fraction


class Policy(NetworkPolicy):
    """Samples an action from the softmax of the actor's logits."""

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        logits = permitted(out, action_mask(obs))
        return {"action": sample_choices(logits, self.action.choices, self.rng), **memory}


class Algorithm(SoftAlgorithm):
    """Learns the actor, the critics and the entropy temperature from batches."""

    actor_outputs = 1
    has_own_weights = True
    steps_at_once = True
    samples_actions = False

    def make_critics(self) -> Any:
        return self.mlp(self.size, ensemble=2)

    def draw(self, rows: int) -> Random:
        return self.critic_masks(self.critic, rows, self.noise)

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the critics' mean squared Bellman errors, and a dict of metrics and columns.

        The value of the next state is an expectation over all actions (eq. 10). The columns are `td_error` `[B]`, which
        becomes the new priorities, `features` `[B, F]`, the features of `obs`, and `least_q` `[B, A]`, the smaller
        value of the two critics for each action.
        """
        view = self.see(nets, rows)
        with torch.no_grad():
            policy = Categorical(nets.actor(view.next_obs), rows["mask_next"])
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, random["target_masks"]).amin(0)  # [B, A]
            soft_q = next_q - nets.log_alpha.exp() * policy.log_probs
            next_value = (policy.log_probs.exp() * soft_q).sum(-1)
            target = rows["reward"] + rows["discount"] * next_value
        values = nets.critic(view.learned, random["masks"])  # [2, B, A]
        action = rows["action"].view(1, -1, 1).expand(2, -1, 1)  # [2, B, 1], the same actions for both critics
        q = values.gather(-1, action).squeeze(-1)  # [2, B], the values of the actions taken
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        columns = {"td_error": (q - target).abs().mean(0), "features": view.obs, "least_q": values.amin(0)}
        return loss, metrics | columns

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of actor (eq. 12) and temperature (eq. 11), and a dict with metrics.

        The loss of the actor is an expectation over all actions, computed without sampling. As in SAC, the loss of the
        temperature has the factor log alpha in place of alpha.
        """
        features, weight, alpha = rows["features"], rows.get("valid_weight"), nets.log_alpha.detach().exp()
        policy = Categorical(nets.actor(features), rows["mask_now"])
        expected_cost = (policy.log_probs.exp() * (alpha * policy.log_probs - rows["least_q"])).sum(-1)
        actor_loss, entropy = mean(expected_cost, weight), policy.entropy()
        missing_entropy = mean(self.entropy_target(rows["mask_now"]) - entropy.detach(), weight)
        alpha_loss = -(nets.log_alpha * missing_entropy).sum()
        metrics = {"actor_loss": actor_loss, "alpha": alpha.squeeze(), "entropy": mean(entropy, weight)}
        return actor_loss + alpha_loss, metrics

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:
        raise NotImplementedError("the actor's loss is an expectation over all actions")

    def entropy_target(self, mask: Tensor | None) -> Tensor | float:
        """Return the target entropy in nats: one number for all rows, or `[B]` with legal-action masks `[B, A]`."""
        fraction: float = self.config.target_entropy
        if mask is None:
            return fraction * math.log(self.size)
        num_legal = mask.sum(-1).clamp(min=1)  # log 0 would be -inf
        return fraction * num_legal.log()
