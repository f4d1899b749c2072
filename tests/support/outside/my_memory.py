"""A user's soft Q-learning with a memory: an encoder of drl-cli, and a head that is a class of its own."""

from dataclasses import dataclass

import drl_cli.api as drl
from drl_cli.api import nn, torch

ACTIONS = ("discrete",)
TABLES = ("sequences",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    lr: drl.Positive = 1e-3
    tau: drl.Fraction = 0.01
    temperature: drl.Positive = 0.1


class Head(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, 32), nn.SiLU(), nn.Linear(32, outputs))

    def forward(self, x):
        return self.layers(x)


def networks(config, network, spec):
    encoder = drl.encoder(network, spec)
    return {"encoder": encoder, "q": Head(encoder.size, spec.action.size)}


def explore(config):
    return {"temperature": config.temperature}


def policy(nets, obs, explore):
    return drl.Categorical(nets.q(nets.encoder(obs)) / explore["temperature"], drl.action_mask(obs))


class Algorithm(drl.Algorithm):
    policy_parts, targets = ("encoder", "q"), ("encoder", "q")

    def exploration(self, counts):
        return {"temperature": self.config.temperature}

    def update(self, batch, counts):
        nets, rows, seen = self.nets, self.rows(batch), self.nets.encoder.see(batch)
        with torch.no_grad():
            next_q = nets.target.q(nets.target.encoder.see(batch).next_obs) / self.config.temperature
            value = self.config.temperature * next_q.logsumexp(-1)
            target = rows["reward"] + rows["discount"] * value
        q = nets.q(seen.learned).gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)
        loss = drl.losses.mean((q - target).square(), rows.get("weight"))
        self.optimizer.minimize(loss, "encoder", "q")
        self.params.follow(self.config.tau)
        return drl.Update({"loss": loss}, self.per_sequence((q - target).abs(), batch))
