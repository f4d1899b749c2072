"""A user's DQN for images or vectors, with modules of its own, a schedule of epsilon, and legal-action masks."""

from dataclasses import dataclass

import drl_cli.api as drl
from drl_cli.api import nn, torch

ACTIONS = ("discrete",)
EXPLORATION = ("epsilon",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    lr: drl.Positive = 1e-3
    target_period: drl.Count = 100
    epsilon_end: drl.Fraction = 0.05
    epsilon_steps: drl.Count = 1000


class Values(nn.Module):
    def __init__(self, network, spec):
        super().__init__()
        self.torso = drl.torso(network, spec)
        size = self.torso.size
        self.layers = nn.Sequential(nn.Linear(size, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, spec.action.size))

    def forward(self, obs):
        return self.layers(self.torso(obs))


def networks(config, network, spec):
    return {"q": Values(network, spec)}


def explore(config, env_steps=0):
    return {"epsilon": drl.linear(env_steps, 1.0, config.epsilon_end, config.epsilon_steps)}


def policy(nets, obs, explore):
    return drl.EpsilonGreedy(nets.q(obs), explore["epsilon"], drl.action_mask(obs))


class Algorithm(drl.Algorithm):
    policy_parts, targets = ("q",), ("q",)

    def update(self, batch, counts):
        nets = self.nets
        with torch.no_grad():
            next_q = drl.EpsilonGreedy(nets.target.q(batch["next_obs"]), 0.0, drl.action_mask(batch["next_obs"])).values
            target = batch["reward"] + batch["discount"] * next_q.amax(-1)
        q = nets.q(batch["obs"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        loss = drl.losses.mean((q - target).square(), batch.get("weight"))
        self.optimizer.minimize(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:
            self.params.follow(1.0)
        return drl.Update({"loss": loss}, (q - target).abs())
