"""DDPG (Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning", arXiv 1509.02971).

DDPG is Q-learning for continuous actions. One critic learns Q values, and the actor learns to choose the action with
the largest Q value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.api import torch

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of DDPG, which conf/algo/ddpg.yaml explains."""

    lr: drl.Positive
    critic_lr: drl.Positive
    tau: drl.Fraction
    noise: drl.NonNegative
    noise_kind: Literal["gaussian", "ou"]
    ou_theta: drl.Positive


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, outputs: int = 1) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critic trains the encoder."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, size, network, squashed=True),
        "critic": drl.Critic(encoder.size, size, network, outputs=outputs),
    }


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.Distribution:
    """Return the action, and the noise of exploration."""
    return drl.Deterministic(nets.actor(nets.encoder(obs)), explore["noise"])


def explore(config: Any) -> dict[str, float]:
    """Return the standard deviation of the noise. Actions are in [-1, 1], so that 1 is half of the action range."""
    return {"noise": config.noise}


def noise(config: Any, spec: drl.EnvSpec) -> drl.Noise | None:
    """Return noise that is correlated in time, or None for independent noise."""
    return drl.OUNoise(spec.action.size, config.ou_theta) if config.noise_kind == "ou" else None


class Algorithm(drl.Algorithm):
    """Learns the actor and the critic. One step changes both, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor"), ("encoder", "actor", "critic")
    rates = {"encoder": "critic_lr", "critic": "critic_lr"}
    has_own_weights = False

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, rows, seen = self.nets, self.rows(batch), self.nets.encoder.see(batch)
        masks, target_masks = (self.masks("critic", len(rows["reward"])) for _ in range(2))

        # (Q(s, a) - y)^2 with y = r + d Q'(s', mu'(s'))    (eq. 4, 5)
        with torch.no_grad():
            next_x = nets.target.encoder.see(batch).next_obs
            next_q = nets.target.critic(next_x, nets.target.actor(next_x), target_masks)
            target = rows["reward"] + rows["discount"] * next_q
        q = nets.critic(seen.learned, rows["action"], masks)
        critic_loss = drl.losses.mse(q - target, rows.get("weight"))

        # -Q(s, mu(s))    (eq. 6)
        actor_q = nets.frozen.critic(seen.obs, nets.actor(seen.obs), masks)
        actor_loss = -drl.losses.mean(actor_q, rows.get("valid_weight"))

        self.optimizer.minimize(critic_loss + actor_loss)
        self.params.follow(self.config.tau)
        q_mean = drl.losses.mean(q, rows.get("valid_weight"))
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": q_mean}
        return drl.Update(metrics, self.per_sequence((q - target).abs(), batch))
