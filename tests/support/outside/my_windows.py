"""An actor-critic that learns from windows, and replaces the value of each step that replay stores."""

from dataclasses import dataclass

import numpy as np
import torch

import drl_cli.api as drl

ACTIONS = ("discrete",)
TABLES = ("windows",)
WRITES = ("value",)
EXPLORATION = ("temperature",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """The learning rate, and the temperature at the end of the run; at the start, it is 1."""

    lr: drl.Positive = 3e-3
    last_temperature: drl.Positive = 0.25


def build(network, spec):
    """Return the modules: outputs are a value and the logits of the actions."""
    return {"net": drl.Network(network, spec, 1 + spec.action.size)}


class Policy(drl.TorchPolicy):
    """Samples from a softmax with the run's temperature."""

    @staticmethod
    def build(config, network, spec):
        return build(network, spec)

    @staticmethod
    def extra_columns(config, network, spec):
        return {"value": drl.Column((), "float32"), "is_random": drl.Column((), "bool")}

    def distribution(self, obs, last):
        out = self.modules["net"](obs)
        return drl.Categorical(out[..., 1:] / self.exploration.get("temperature", 1.0)), {"value": out[..., 0]}

    def warm_up(self, obs, last):
        return {"value": torch.zeros(len(obs))}

    def priorities(self, rows):
        """Return |value - n-step return|."""
        with torch.no_grad():
            after = self.modules["net"](torch.from_numpy(rows["next_obs"]))[:, 0].numpy()
        return np.abs(rows["value"] - rows["reward"] - rows["discount"] * after)


class Algorithm(drl.Algorithm):
    """Learns V(s), and the actions that were better than the stored value."""

    policy_parts = ("net",)

    def __init__(self, config, network, spec, seed, context):
        modules = build(network, spec)
        self.config, self.context, self.net = config, context, modules["net"]
        self.params = drl.Params(context, **modules)
        self.optimizer = drl.Optimizer(self.params, {"net": config.lr}, context)

    def exploration(self, env_steps):
        done = min(1.0, env_steps / self.context.total_env_steps)
        return {"temperature": self.config.last_temperature**done}

    def update(self, batch, counts):
        out = self.net(batch["obs"])  # [B, L, 1 + A]
        value, logits = out[..., 0], out[..., 1:]
        valid = batch["valid"].float()
        weight = valid * batch["weight"].unsqueeze(-1) if "weight" in batch else valid
        target = batch["reward"] + batch["discount"] * self.net(batch["next_obs"])[..., 0].detach()
        log_prob = logits.log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        stored = torch.where(batch["is_random"], value.detach(), batch["value"])
        better = (target - stored).clamp(0.0, 1.0)
        loss = (weight * ((target - value).square() - better * log_prob)).mean()
        self.optimizer.minimize(loss)
        priorities = (target - value).detach().abs()
        return drl.Update(
            {"loss": loss, "stored": batch["value"].mean()}, priorities, columns={"value": value.detach()}
        )
