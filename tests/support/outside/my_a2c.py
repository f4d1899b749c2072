"""A2C (Mnih et al. 2016, arXiv 1602.01783): one gradient update from each batch of rollouts."""

from dataclasses import dataclass

import torch
from torch import nn

import drl_cli.api as drl

ACTIONS = ("discrete",)
TABLES = ("fifo-once",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """Options of A2C."""

    lr: drl.Positive = 1e-3
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

    def distribution(self, obs, last):
        return drl.Categorical(self.modules["actor"](obs)), {}


class Algorithm(drl.Algorithm):
    """Actor and critic, without a shared torso."""

    policy_parts = ("actor",)

    def __init__(self, config, network, spec, seed, context):
        self.config, self.group = config, context.group
        self.actor, self.critic = net(network, spec, spec.action.size), net(network, spec, 1)
        self.params = drl.Params(context, actor=self.actor, critic=self.critic)
        self.optimizer = drl.Optimizer(self.params, {"actor": config.lr, "critic": config.lr}, context)

    def update(self, batch, counts):
        rollouts, value = drl.Rollouts(batch, self.group), self.critic(batch["obs"]).squeeze(-1)
        with torch.no_grad():
            steps = rollouts.steps(value, self.critic(rollouts.bootstrap_obs).squeeze(-1))
            advantage = rollouts.flat(drl.losses.gae(*steps, self.config.gae_lambda))
            target, advantage = advantage + value, rollouts.normalized(advantage)
        chosen = drl.Categorical(self.actor(batch["obs"]))
        policy_loss = -(chosen.log_prob(batch["action"]) * advantage).mean()
        value_loss, entropy = 0.5 * (value - target).square().mean(), chosen.entropy().mean()
        self.optimizer.minimize(policy_loss + value_loss - self.config.entropy_coef * entropy)
        return drl.Update({"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})
