"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) as one loss function."""

from dataclasses import dataclass

import torch
from torch import nn

import drl_cli.api as drl

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    lr: drl.Positive = 3e-4
    tau: drl.Fraction = 0.005


class Actor(nn.Module):
    def __init__(self, network, spec):
        super().__init__()
        self.torso = drl.torso(network, spec)
        self.mlp = drl.MLP(self.torso.size, 2 * spec.action.size, network)

    def forward(self, obs):
        mean, log_std = self.mlp(self.torso(obs)).chunk(2, -1)
        return mean, log_std.clamp(-20, 2)


class Critic(nn.Module):
    def __init__(self, network, spec):
        super().__init__()
        self.torso = drl.torso(network, spec)
        self.mlp = drl.MLP(self.torso.size + spec.action.size, 1, network, ensemble=2)

    def forward(self, obs, action):
        return self.mlp(torch.cat([self.torso(obs), action], -1)).squeeze(-1)


class Policy(drl.TorchPolicy):
    @staticmethod
    def build(config, network, spec):
        return {"actor": Actor(network, spec)}

    def distribution(self, obs, last):
        return drl.TanhGaussian(*self.modules["actor"](obs)), {}


class Algorithm(drl.Algorithm):
    policy_parts = ("actor",)

    def __init__(self, config, network, spec, seed, context):
        self.config, self.context, self.size = config, context, spec.action.size
        self.params = drl.Params(context, actor=Actor(network, spec), critic=Critic(network, spec), log_alpha=1)
        self.params.target("critic")
        self.noise = self.params.generator("noise", seed)
        self.optimizer = drl.Optimizer(self.params, dict.fromkeys(self.params.slices, config.lr), context)
        self.gradients = drl.Gradients(self.params, self.loss, context)

    def loss(self, nets, batch, noise):
        obs, alpha = batch["obs"], nets.frozen.log_alpha.exp()
        with torch.no_grad():
            action, log_prob = drl.TanhGaussian(*nets.actor(batch["next_obs"])).sample_log_prob(noise[0])
            target = drl.losses.soft_target(
                batch["reward"], batch["discount"], nets.target.critic(batch["next_obs"], action), log_prob, alpha
            )
        critic_loss = drl.losses.twin_critics(nets.critic(obs, batch["action"]), target)
        action, log_prob = drl.TanhGaussian(*nets.actor(obs)).sample_log_prob(noise[1])
        actor_loss = (alpha * log_prob - nets.frozen.critic(obs, action).amin(0)).mean()
        alpha_loss = -(nets.log_alpha * (log_prob.detach() - self.size)).mean()
        return critic_loss + actor_loss + alpha_loss, {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def update(self, batch, counts):
        noise = self.context.randn(len(batch["reward"]), 2 * self.size, self.noise).chunk(2, -1)
        loss, metrics = self.gradients(batch, noise)
        self.optimizer.step(loss)
        self.params.follow(self.config.tau)
        return drl.Update(metrics)
