"""FQL: Flow Q-Learning (Park et al. 2025, arXiv 2502.02538).

Two policies turn normal noise into an action. The flow policy imitates the data (flow matching): its network predicts a
velocity, which moves the noise to an action in several small steps. The flow policy can represent several ways to act
in one state. The actor needs only one step. Its loss has two terms: the distance from the flow policy's action for the
same noise, and minus Q. No gradient flows through the steps of the flow. Workers and evaluations use only the actor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

import drl_cli.api as drl
from drl_cli.algos.offline.td3_bc import mean_abs
from drl_cli.api import torch

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of FQL, which conf/algo/fql.yaml explains."""

    lr: drl.Positive
    tau: drl.Fraction
    alpha: drl.NonNegative
    flow_steps: drl.Count
    next_q: Literal["mean", "min"]
    normalize_q: bool


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Actor and flow get features and noise, and the flow also the time.

    Only the loss of the critics trains the encoder.
    """
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size + size, size, network),
        "flow": drl.MLP(encoder.size + size + 1, size, network),
        "critic": drl.Critic(encoder.size, size, replace(network, layer_norm=True), ensemble=2),
    }


class OneStep(drl.Distribution):
    """The actor's actions for features `x` `[B, F]` and normal noise `[B, size]`. Evaluations use noise 0."""

    def __init__(self, actor: Any, x: Any, size: int) -> None:
        self.actor, self.x, self.size = actor, x, size

    def at(self, noise: Any) -> Any:
        """Return the actions for this noise, not clipped."""
        join = np.concatenate if isinstance(noise, np.ndarray) else torch.cat
        return self.actor(join([self.x, noise], -1))

    def sample(self, random: Any) -> Any:
        return self.at(random.standard_normal((len(self.x), self.size), np.float32)).clip(-1.0, 1.0)

    @property
    def mode(self) -> Any:
        shape = (self.x.shape[0], self.size)
        return self.at(np.zeros(shape, np.float32) if isinstance(self.x, np.ndarray) else self.x.new_zeros(shape))


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], spec: drl.EnvSpec) -> OneStep:
    return OneStep(nets.actor, nets.encoder(obs), spec.action.size)


class Algorithm(drl.Algorithm):
    """Learns actor, flow and critics. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor"), ("encoder", "critic")

    def flow_action(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Return the flow policy's actions `[B, A]` for features `x` `[B, F]` and normal noise `[B, A]`.

        `flow_steps` steps of Euler's method integrate the velocity from time 0 to time 1 (algorithm 2).
        """
        steps, action = self.config.flow_steps, noise
        for i in range(steps):
            time = torch.full_like(action[:, :1], i / steps)  # [B, 1]
            action = action + self.nets.flow(torch.cat([x, action, time], -1)) / steps
        return action.clamp(-1.0, 1.0)

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, rows, seen = self.config, self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, size, valid = len(rows["reward"]), self.spec.action.size, rows.get("valid_weight")  # 0 for padding
        next_noise, start, noise = self.randn(num, size, size, size)
        time = self.context.rand(num, 1, self.generator)
        x, action = seen.obs, rows["action"]
        masks, target_masks = (self.masks("critic", num) for _ in range(2))

        # The critics: the next action is the actor's    (eq. 4)
        with torch.no_grad():
            next_action = OneStep(nets.actor, seen.next_obs, size).at(next_noise).clamp(-1.0, 1.0)
            next_q = nets.target.critic(nets.target.encoder.see(batch).next_obs, next_action, target_masks)
            next_value = next_q.mean(0) if config.next_q == "mean" else next_q.amin(0)
            target = rows["reward"] + rows["discount"] * next_value
        q = nets.critic(seen.learned, action, masks)
        critic_loss = drl.losses.twin_critics(q, target, rows.get("weight"))

        # The flow: its velocity leads straight from the noise to the batch's action    (eq. 6)
        point = (1.0 - time) * start + time * action
        flow_error = nets.flow(torch.cat([x, point, time], -1)) - (action - start)
        flow_loss = drl.losses.mean(flow_error.square().mean(-1), valid)

        # The actor: near to the flow policy's action for the same noise, and with a large Q    (eq. 8)
        own_action = OneStep(nets.actor, x, size).at(noise)
        with torch.no_grad():
            flow_action = self.flow_action(x, noise)
        distance = drl.losses.mean((own_action - flow_action).square().mean(-1), valid)
        own_q = nets.frozen.critic(x, own_action.clamp(-1.0, 1.0), masks).mean(0)
        q_term = drl.losses.mean(own_q, valid)
        if config.normalize_q:
            q_term = q_term / mean_abs(own_q, valid, self.context)
        actor_loss = config.alpha * distance - q_term

        self.optimizer.minimize(critic_loss + flow_loss + actor_loss)
        self.params.follow(config.tau)
        metrics = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss}
        metrics |= {"distance": distance, "q_mean": drl.losses.mean(q, valid)}
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))
