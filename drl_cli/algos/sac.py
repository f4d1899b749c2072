"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905).

SAC has twin critics, a tanh-Gaussian actor, and a learned temperature. The default target entropy is -dim(A). Batches
contain n-step rewards and discounts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.algos.base import Batch
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.algos.soft_actor_critic import TABLES as TABLES
from drl_cli.algos.soft_actor_critic import SoftActorCritic, SoftConfig
from drl_cli.losses import policy as losses
from drl_cli.losses.policy import LOG_STD_MAX, LOG_STD_MIN
from drl_cli.losses.value import ensemble_mse, soft_target
from drl_cli.types import Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor, torch

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(SoftConfig):
    """Options of SAC."""

    target_entropy: float | None


class Policy(NetworkPolicy):
    """The tanh-Gaussian actor."""

    is_squashed = True
    outputs = 2  # mean and log standard deviation

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        mean, log_std = out[:, : self.action.size], out[:, self.action.size :]  # ten times faster than np.split
        noise = self.rng.standard_normal(mean.shape, dtype=np.float32)
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))
        return {"action": np.tanh(mean + std * noise), **memory}


class Algorithm(SoftActorCritic):
    """Learns actor, critics and temperature in a trainer."""

    critic_times = 2  # one input with the action taken, and one with the actor's action

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config, size = config, spec.action.size
        self.target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        self.build_heads(config, self.head(Policy.outputs * size), self.head(1, inputs=size, ensemble=2))
        self.noise = self.params.generator("noise", self.seed + 1)

    def draw(self, rows: dict[str, Any]) -> None:  # Any: a tensor, or a dict of tensors
        num, size = rows["action"].shape
        rows["noise"] = self.context.randn(num, 2 * size, self.noise)

    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        obs, next_obs, valid_weight = rows["obs"], rows["next_obs"], rows.get("valid_weight")
        alpha, num = self.log_alpha.exp(), obs.shape[0]

        # One forward pass of the actor covers obs and next_obs.
        # One forward pass of the critics covers the actions taken and the actor's actions, both in obs.
        out, actor_trace = self.actor.forward(torch.cat([obs, next_obs]))
        mean, log_std = out[0].chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        noise = torch.cat(rows["noise"].chunk(2, -1))
        (action, next_action), (log_prob, next_log_prob) = (
            x.chunk(2) for x in losses.tanh_gaussian(mean, log_std, noise)
        )
        inputs = torch.cat([torch.cat([obs, obs]), torch.cat([rows["action"], action])], -1)
        values, critic_trace = self.critic.forward(inputs, rows["drop"])
        q, q_pi = values.squeeze(-1).chunk(2, -1)

        # Critics: the squared soft Bellman error, times the row's importance weight.
        next_q, _ = self.target.forward(torch.cat([rows["target_next_obs"], next_action], -1))
        target = soft_target(rows["reward"], rows["discount"], next_q.squeeze(-1), next_log_prob, alpha)
        critic_loss, d_q = ensemble_mse(q, target, rows.get("weight"))

        # Actor: the gradient of min Q flows through the reparametrised action.
        actor_loss, d_q_pi, d_log_prob = losses.soft_policy_loss(q_pi, log_prob, alpha, valid_weight)
        d_values = torch.cat([d_q, d_q_pi], -1).unsqueeze(-1)
        if not self.encoder.is_trainable:
            d_obs = None
            d_action = self.critic.backward(critic_trace, d_values, to_weights=num, first=obs.shape[1])
        else:
            d_inputs = self.critic.backward(critic_trace, d_values, to_weights=num, to_inputs=True)
            d_obs, d_action = d_inputs[:num, : obs.shape[1]], d_inputs[num:, obs.shape[1] :]
        log_std, noise = log_std[:num], noise[:num]
        d_mean, d_log_std = losses.tanh_gaussian_backward(action, log_std, noise, d_action, d_log_prob)
        d_log_std *= (log_std > LOG_STD_MIN) & (log_std < LOG_STD_MAX)
        self.actor.backward(actor_trace, torch.cat([d_mean, d_log_std], -1).unsqueeze(0))

        self.d_log_alpha.fill_(losses.temperature_gradient(log_prob, self.target_entropy, valid_weight))
        metrics = self.metrics(critic_loss, actor_loss, alpha, -log_prob, q)
        return metrics, (q - target).abs().mean(0), d_obs
