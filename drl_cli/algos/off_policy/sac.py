"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905).

SAC has twin critics, a tanh-Gaussian actor of A action dimensions, and a learned temperature. The target entropy is -A.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.api import torch

ACTIONS, TABLES = ("box",), ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of SAC, which conf/algo/sac.yaml explains."""

    lr: drl.Positive
    alpha_lr: drl.Positive
    tau: drl.Fraction
    initial_alpha: drl.Positive
    target_entropy: float | None
    actor_period: drl.Count
    noise_kind: Literal["gaussian", "pink"]


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critics trains the encoder."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, 2 * size, network),
        "critic": drl.Critic(encoder.size, size, network, ensemble=2),
        "log_alpha": drl.Scalar(math.log(config.initial_alpha)),
    }


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.TanhGaussian:
    return drl.TanhGaussian.of(nets.actor(nets.encoder(obs)))


def noise(config: Any, spec: drl.EnvSpec) -> drl.Noise | None:
    """Return the exploration noise that is correlated in time, or None."""
    return drl.PinkNoise(spec.action.size) if config.noise_kind == "pink" else None


class Algorithm(drl.Algorithm):
    """Learns actor, critics and temperature. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor"), ("encoder", "critic")
    rates = {"log_alpha": "alpha_lr"}

    def critic_loss(
        self, batch: drl.Batch, rows: drl.Batch, seen: Any, noise: torch.Tensor
    ) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return the critics' mean squared soft Bellman errors (eq. 5), metrics, and the error `[B]` of each row."""
        nets = self.nets
        masks, target_masks = (self.masks("critic", len(noise)) for _ in range(2))
        with torch.no_grad():
            next_action, log_prob = drl.TanhGaussian.of(nets.actor(seen.next_obs)).sample_log_prob(noise)
            next_x = nets.target.encoder.see(batch).next_obs
            next_q = nets.target.critic(next_x, next_action, target_masks).amin(0)
            target = rows["reward"] + rows["discount"] * (next_q - nets.log_alpha().exp() * log_prob)
        q = nets.critic(seen.learned, rows["action"], masks)
        loss = drl.losses.twin_critics(q, target, rows.get("weight"))
        q_mean = drl.losses.mean(q, rows.get("valid_weight"))
        return loss, {"critic_loss": loss, "q_mean": q_mean}, (q - target).abs().mean(0)

    def value(self, x: torch.Tensor, action: torch.Tensor, masks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the values `[B]` that the actor maximises: here, those of the more careful critic."""
        value: torch.Tensor = self.nets.frozen.critic(x, action, masks).amin(0)
        return value

    def actor_loss(
        self, rows: drl.Batch, x: torch.Tensor, noise: torch.Tensor, masks: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, drl.Metrics]:
        """Return the losses of actor (eq. 7) and temperature (eq. 18, with log alpha as the factor), and metrics."""
        nets, valid, wanted = self.nets, rows.get("valid_weight"), self.config.target_entropy
        action, log_prob = drl.TanhGaussian.of(nets.actor(x)).sample_log_prob(noise)
        alpha = nets.log_alpha().detach().exp()
        actor_loss = drl.losses.mean(alpha * log_prob - self.value(x, action, masks), valid)
        entropy = -drl.losses.mean(log_prob.detach(), valid)
        alpha_loss = nets.log_alpha() * (entropy - (-self.spec.action.size if wanted is None else wanted))
        return actor_loss + alpha_loss, {"actor_loss": actor_loss, "alpha": alpha, "entropy": entropy}

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        rows, seen = self.rows(batch), self.nets.encoder.see(batch)
        noise, next_noise = self.randn(len(rows["reward"]), *[self.spec.action.size] * 2)
        loss, metrics, error = self.critic_loss(batch, rows, seen, next_noise)
        parts = ["encoder", "critic"]
        if counts.opt_steps % self.config.actor_period == 0:
            actor_loss, more = self.actor_loss(rows, seen.obs, noise, self.masks("critic", len(noise)))
            loss, metrics, parts = loss + actor_loss, metrics | more, [*parts, "actor", "log_alpha"]
        self.optimizer.minimize(loss, *parts)
        self.params.follow(self.config.tau)
        return drl.Update(metrics, self.per_sequence(error, batch))
