"""DQN (Mnih et al. 2015, Nature 518) as one loss function."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import drl_cli.api as drl

ACTIONS = ("discrete",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """Options of DQN."""

    lr: drl.Positive = 5e-4
    target_period: drl.Count = 500
    epsilon: drl.Fraction = 0.1


class Q(nn.Module):
    """The values `[B, choices]` of all actions."""

    def __init__(self, network, spec):
        super().__init__()
        self.torso = drl.torso(network, spec)
        self.mlp = drl.MLP(self.torso.size, spec.action.size, network)

    def forward(self, obs):
        return self.mlp(self.torso(obs))


class Policy(drl.TorchPolicy):
    """Takes the best action, or with probability `epsilon` a random one."""

    @staticmethod
    def build(config, network, spec):
        return {"q": Q(network, spec)}

    def choose(self, obs):
        return self.modules["q"](obs).argmax(-1)

    def explored(self, action, obs):
        is_random = self.rng.random(len(action)) < self.config.epsilon
        return np.where(is_random, self.rng.integers(0, self.action.size, len(action)), action)


class Algorithm(drl.Algorithm):
    """Learns Q from the squared or absolute TD error (Huber)."""

    policy_parts = ("q",)

    def __init__(self, config, network, spec, seed, context):
        self.config = config
        self.params = drl.Params(context, q=Q(network, spec))
        self.params.target("q")
        self.optimizer = drl.Optimizer(self.params, {"q": config.lr}, context)
        self.gradients = drl.Gradients(self.params, self.loss, context)

    def loss(self, nets, batch, noise):
        with torch.no_grad():
            target = batch["reward"] + batch["discount"] * nets.target.q(batch["next_obs"]).amax(-1)
        q = nets.q(batch["obs"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        loss = nn.functional.huber_loss(q, target)
        return loss, {"q_loss": loss, "q_mean": q.mean(), "td_error": (q - target).abs()}

    def update(self, batch, counts):
        loss, found = self.gradients(batch)
        self.optimizer.step(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:
            self.params.follow(1.0)
        metrics = dict(found)
        return drl.Update(metrics, metrics.pop("td_error"))
