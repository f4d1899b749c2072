"""A2C (Mnih et al. 2016, arXiv 1602.01783): one gradient update from each batch of rollouts."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import drl_cli.api as drl
from drl_cli.losses.returns import gae

ACTIONS = ("discrete",)
TABLES = ("fifo-once",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """Options of A2C."""

    lr: drl.Positive = 3e-3
    gae_lambda: drl.Fraction = 0.95
    entropy_coef: drl.NonNegative = 0.01


def net(network, spec, outputs):
    """Return a torso and an MLP."""
    torso = drl.torso(network, spec)
    return nn.Sequential(torso, nn.Linear(torso.size, 64), nn.Tanh(), nn.Linear(64, outputs))


class Policy(drl.TorchPolicy):
    """A softmax over the logits."""

    @staticmethod
    def build(config, network, spec):
        return {"actor": net(network, spec, spec.action.size)}

    def choose(self, obs):
        return self.modules["actor"](obs).argmax(-1)

    def explored(self, action, obs):
        with torch.no_grad():
            logits = self.modules["actor"](torch.from_numpy(obs)).numpy()
        return (logits + self.rng.gumbel(size=logits.shape).astype(np.float32)).argmax(-1)


class Algorithm(drl.Algorithm):
    """Actor and critic, without a shared torso."""

    policy_parts = ("actor",)

    def __init__(self, config, network, spec, seed, context):
        self.config, self.group = config, context.group
        self.actor, self.critic = net(network, spec, spec.action.size), net(network, spec, 1)
        self.params = drl.Params(context, actor=self.actor, critic=self.critic)
        self.optimizer = drl.Optimizer(self.params, {"actor": config.lr, "critic": config.lr}, context)

    def update(self, batch, counts):
        rollouts, config = drl.Rollouts(batch, self.group), self.config
        value = self.critic(batch["obs"]).squeeze(-1)
        with torch.no_grad():
            next_value = rollouts.next_values(value.detach(), self.critic(rollouts.bootstrap_obs).squeeze(-1))
        rows = (rollouts.rows["reward"], rollouts.rows["discount"], value.detach(), next_value, rollouts.rows["cut"])
        advantage = torch.from_numpy(gae(*(column.numpy() for column in rows), config.gae_lambda))
        chosen = torch.distributions.Categorical(logits=self.actor(batch["obs"]))
        policy_loss = -(chosen.log_prob(batch["action"]) * rollouts.normalized(advantage)).mean()
        value_loss = 0.5 * (value - (advantage + value.detach())).square().mean()
        entropy = chosen.entropy().mean()
        self.optimizer.minimize(policy_loss + value_loss - config.entropy_coef * entropy)
        return drl.Update({"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})
