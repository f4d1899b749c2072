"""Soft Actor-Critic for discrete actions (Christodoulou 2019, "... for Discrete Action Settings", arXiv 1910.07207).

The actor returns a logit for each action, and each of the twin critics returns a value for each action. Therefore
expectations over actions are exact sums, not samples. The target entropy is a fraction of the largest possible entropy,
which is the logarithm of the number of legal actions. Batches contain n-step rewards and discounts.
"""

import math
from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.policy import NetworkPolicy, allowed, sample_choices
from drl_cli.algos.soft_actor_critic import TABLES as TABLES
from drl_cli.algos.soft_actor_critic import SoftActorCritic, SoftConfig
from drl_cli.losses.policy import expected_soft_policy_loss, permitted, temperature_gradient
from drl_cli.losses.value import ensemble_mse, expected_soft_target
from drl_cli.types import Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction

ACTIONS = ("discrete",)


@dataclass(frozen=True)
class Config(SoftConfig):
    """Options of discrete SAC."""

    target_entropy: Fraction


class Policy(NetworkPolicy):
    """The categorical actor."""

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        logits, memory = self.forward(obs, last)
        return {"action": sample_choices(allowed(logits, obs), self.action.choices, self.rng), **memory}


class Algorithm(SoftActorCritic):
    """Learns actor, critics and temperature in a trainer."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config, self.num_actions = config, spec.action.size
        self.build_heads(config, self.head(self.num_actions), self.head(self.num_actions, ensemble=2))

    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        obs, valid_weight, alpha = rows["obs"], rows.get("valid_weight"), self.log_alpha.exp()
        out, actor_trace = self.actor.forward(torch.cat([obs, rows["next_obs"]]))
        logits, next_logits = out[0].chunk(2)
        log_probs = permitted(logits, rows["mask_now"]).log_softmax(-1)
        next_log_probs = permitted(next_logits, rows["mask_next"]).log_softmax(-1)

        # Critics: the squared soft Bellman error of the action taken, times the row's importance weight.
        next_q, _ = self.target.forward(rows["target_next_obs"])
        target = expected_soft_target(rows["reward"], rows["discount"], next_q, next_log_probs, alpha)
        values, critic_trace = self.critic.forward(obs, rows["drop"])
        action = rows["action"].view(1, -1, 1).expand(2, -1, 1)
        q = values.gather(-1, action).squeeze(-1)
        critic_loss, d_q = ensemble_mse(q, target, rows.get("weight"))
        d_values = torch.zeros_like(values).scatter_(-1, action, d_q.unsqueeze(-1))
        learns = self.encoder.is_trainable
        d_obs = self.critic.backward(critic_trace, d_values, to_inputs=learns)

        actor_loss, d_logits, entropy = expected_soft_policy_loss(log_probs, values.min(0).values, alpha, valid_weight)
        self.actor.backward(actor_trace, d_logits.unsqueeze(0))
        self.d_log_alpha.fill_(temperature_gradient(self.entropy_target(rows["mask_now"]) - entropy, 0.0, valid_weight))
        metrics = self.metrics(critic_loss, actor_loss, alpha, entropy, q)
        return metrics, (q - target).abs().mean(0), d_obs if learns else None

    def entropy_target(self, mask: Tensor | None) -> Tensor | float:
        """Return the target entropy: one number or, with legal-action masks `[N, A]`, a number for each state."""
        if mask is None:
            return self.config.target_entropy * math.log(self.num_actions)
        return self.config.target_entropy * mask.sum(-1).clamp(min=1).log()
