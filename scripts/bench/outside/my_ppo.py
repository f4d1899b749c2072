"""PPO (Schulman et al. 2017, arXiv 1707.06347) for continuous actions, as one loss function."""

from dataclasses import dataclass

import torch
from torch import nn

import drl_cli.api as drl

ACTIONS = ("box",)
TABLES = ("fifo-once",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """Options of PPO."""

    lr: drl.Positive = 3e-4
    gae_lambda: drl.Fraction = 0.95
    clip: drl.Positive = 0.2
    epochs: drl.Count = 10
    minibatch_size: drl.Count = 64
    value_coef: drl.NonNegative = 0.5


class Net(nn.Module):
    """A torso and an MLP."""

    def __init__(self, network, spec, outputs):
        super().__init__()
        self.torso = drl.torso(network, spec)
        self.mlp = drl.MLP(self.torso.size, outputs, network)

    def forward(self, obs):
        return self.mlp(self.torso(obs))


class Actor(Net):
    """A Gaussian with a learned standard deviation."""

    def __init__(self, network, spec):
        super().__init__(network, spec, spec.action.size)
        self.log_std = nn.Parameter(torch.zeros(spec.action.size))

    def forward(self, obs):
        mean = super().forward(obs)
        return mean, self.log_std.expand_as(mean)


class Policy(drl.TorchPolicy):
    """Samples the Gaussian."""

    @staticmethod
    def build(config, network, spec):
        return {"actor": Actor(network, spec)}

    @staticmethod
    def extra_columns(config, network, spec):
        return {"log_prob": drl.Column((), "float32")}

    def distribution(self, obs, last):
        return drl.Gaussian(*self.modules["actor"](obs)), {}


class Algorithm(drl.Algorithm):
    """Learns actor and critic from minibatches of a rollout."""

    policy_parts, is_one_step = ("actor",), False

    def __init__(self, config, network, spec, seed, context):
        self.config, self.group = config, context.group
        self.critic = Net(network, spec, 1)
        self.params = drl.Params(context, actor=Actor(network, spec), critic=self.critic)
        self.shuffle = self.params.generator("shuffle", seed, on_cpu=True)
        self.optimizer = drl.Optimizer(self.params, {"actor": config.lr, "critic": config.lr}, context)
        self.gradients = drl.Gradients(self.params, self.loss, context)
        self.step = context.chained(self._step, self)

    def loss(self, nets, rows, noise):
        clip, chosen = self.config.clip, drl.Gaussian(*nets.actor(rows["obs"]))
        log_ratio = chosen.log_prob(rows["action"]) - rows["log_prob"]
        ratio, advantage = log_ratio.exp(), rows["advantage"]
        policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        value_loss = 0.5 * (nets.critic(rows["obs"]).squeeze(-1) - rows["target"]).square().mean()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": chosen.entropy().mean()}
        metrics |= {
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": ((ratio - 1).abs() > clip).float().mean(),
        }
        return policy_loss + self.config.value_coef * value_loss, metrics

    def _step(self, rows):
        loss, metrics = self.gradients(rows)
        self.optimizer.step(loss)
        return dict(metrics)

    def update(self, batch, counts):
        rollouts = drl.Rollouts(batch, self.group)
        with torch.no_grad():
            value = self.critic(batch["obs"]).squeeze(-1)
            steps = rollouts.steps(value, self.critic(rollouts.bootstrap_obs).squeeze(-1))
            advantage = rollouts.flat(drl.losses.gae(*steps, self.config.gae_lambda))
        rows = {name: batch[name] for name in ("obs", "action", "log_prob")}
        rows |= {"target": advantage + value, "advantage": rollouts.normalized(advantage)}
        made = []
        for _ in range(self.config.epochs):
            order = torch.randperm(rollouts.num, generator=self.shuffle)
            parts = [torch.split(column[order], self.config.minibatch_size) for column in rows.values()]
            made += [self.step(dict(zip(rows, part, strict=True))) for part in zip(*parts, strict=True)]
        metrics = {name: torch.stack([one[name] for one in made]).mean() for name in made[0]}
        return drl.Update(metrics, steps=len(made))
