"""Soft Actor-Critic for discrete actions (Christodoulou 2019, "... for Discrete Action Settings", arXiv 1910.07207).

The actor gives a logit for each action and the twin critics a value: expectations over actions are sums instead of
samples, so that nothing is reparametrised. The entropy aimed at is a fraction of the largest there is, the logarithm of
the number of actions that are allowed. The n-step return and the discount come with the batch.
"""

import math
from dataclasses import dataclass

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.algos.policy import NetworkPolicy, allowed, sample_choices
from drl_cli.losses.policy import expected_soft_policy_loss, permitted, temperature_gradient
from drl_cli.losses.value import ensemble_mse, expected_soft_target
from drl_cli.types import Columns, EnvSpec, Last, Obs
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Fraction, Positive

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True)
class Config(LearnerConfig):
    """Options of discrete SAC."""

    alpha_lr: Positive
    tau: Fraction
    initial_alpha: Positive
    target_entropy: Fraction


class Policy(NetworkPolicy):
    """The categorical actor."""

    def act(self, obs: Obs, last: Last | None = None) -> Columns:
        logits, memory = self.forward(obs, last)
        return {"action": sample_choices(allowed(logits, obs), self.action.choices, self.rng), **memory}


class Algorithm(NetworkAlgorithm):
    """The learner. What the encoder of images or sequences learns, it learns from the critics."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config, self.num_actions = config, spec.action.size
        parts: dict[str, Head | int] = {
            "actor": self.head(self.num_actions),
            "critic": self.head(self.num_actions, ensemble=2),
            "log_alpha": 1,
        }
        heads = self.build(parts, policy=("actor",), lr=config.lr, lrs={"log_alpha": config.alpha_lr})
        self.actor, self.critic = heads["actor"], heads["critic"]
        self.target = self.target_of("critic", self.critic)
        self.log_alpha, self.d_log_alpha = self.params["log_alpha"].flat, self.params["log_alpha"].grad
        self.log_alpha.fill_(float(np.log(config.initial_alpha)))

    def update(self, batch: Batch, counts: Counts) -> Update:
        view, rows = self.see(batch, self.critic)
        rows["next_obs"], rows["target_next_obs"] = view.next_obs, self.see_target(batch, view).next_obs
        metrics, td_error, d_obs = self.gradients(rows)
        self.step(view, d_obs, metrics["critic_loss"], metrics["actor_loss"])
        self.params.follow(self.config.tau)
        return Update(metrics, self.by_step(td_error, batch))

    def gradients(self, rows: Batch) -> "tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None]":
        """Write all gradients; returns metrics, |TD error| `[N]` and d critic loss/d obs `[N, F]` (or None)."""
        obs, real, alpha = rows["obs"], rows.get("real"), self.log_alpha.exp()
        out, actor_trace = self.actor.forward(torch.cat([obs, rows["next_obs"]]))
        logits, next_logits = out[0].chunk(2)
        log_probs = permitted(logits, rows["mask_now"]).log_softmax(-1)
        next_log_probs = permitted(next_logits, rows["mask_next"]).log_softmax(-1)

        # Critics: the squared soft Bellman error of the action taken, weighted where replay is prioritized.
        next_q, _ = self.target.forward(rows["target_next_obs"])
        target = expected_soft_target(rows["reward"], rows["discount"], next_q, next_log_probs, alpha)
        values, critic_trace = self.critic.forward(obs, rows["drop"])
        action = rows["action"].view(1, -1, 1).expand(2, -1, 1)
        q = values.gather(-1, action).squeeze(-1)
        critic_loss, d_q = ensemble_mse(q, target, rows.get("weight"))
        d_values = torch.zeros_like(values).scatter_(-1, action, d_q.unsqueeze(-1))
        d_obs = self.critic.backward(critic_trace, d_values, to_inputs=not self.encoder.is_plain)

        actor_loss, d_logits, entropy = expected_soft_policy_loss(log_probs, values.min(0).values, alpha, real)
        self.actor.backward(actor_trace, d_logits.unsqueeze(0))
        self.d_log_alpha.fill_(temperature_gradient(self.aim(rows["mask_now"]) - entropy, 0.0, real))
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "alpha": alpha.squeeze(),
            "entropy": entropy.mean(),
            "q_mean": q.mean(),
        }
        return metrics, (q - target).abs().mean(0), d_obs

    def aim(self, mask: "torch.Tensor | None") -> "torch.Tensor | float":
        """The entropy aimed at, in each state `[N]` where masks say which actions are allowed."""
        if mask is None:
            return self.config.target_entropy * math.log(self.num_actions)
        return self.config.target_entropy * mask.sum(-1).clamp(min=1).log()
