"""Gumbel MuZero in one file: it learns a model in latent states, and finds each action by a search with the model."""

from dataclasses import dataclass

import numpy as np
import torch

import drl_cli.api as drl

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """Windows need unroll + n_step + 1 steps: 8, the default of replay.seq_len."""

    lr: drl.Positive = 1e-3
    n_step: drl.Count = 4
    unroll: drl.Count = 3
    simulations: drl.Count = 16


def build(network, spec):
    """Return representation h, dynamics g and prediction f. Latent states have the last hidden width."""
    width, actions = network.hidden[-1], spec.action.size
    return {
        "h": drl.Network(network, spec, width),
        "g": drl.MLP(width + actions, width + 1, network),
        "f": drl.MLP(width, actions + 1, network, last=0.01),
    }


def squashed(x):
    """Return sign(x) (sqrt(|x| + 1) - 1): the networks predict rewards and values on this scale."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0)


def unsquashed(y):
    return y.sign() * ((y.abs() + 1.0).square() - 1.0)


class Model:
    """The networks, as drl.search calls them."""

    def __init__(self, parts, gamma, actions):
        self.h, self.g, self.f = (parts[name] for name in "hgf")
        self.gamma, self.eye = gamma, torch.eye(actions)

    @staticmethod
    def scaled(latent):
        low, high = latent.amin(-1, keepdim=True), latent.amax(-1, keepdim=True)
        return (latent - low) / (high - low + 1e-5)

    def encode(self, obs):
        return self.scaled(self.h(obs))

    def predict(self, latent):
        """Return the logits of the policy `[B, A]` and the value `[B]`."""
        out = self.f(latent)
        return out[:, :-1], out[:, -1]

    def step(self, latent, action):
        """Return the next latent states and the rewards."""
        out = self.g(torch.cat([latent, self.eye.to(latent.device)[action]], -1))
        return self.scaled(latent + out[:, :-1]), out[:, -1]

    def root(self, obs):
        latent = self.encode(obs)
        logits, value = self.predict(latent)
        return latent, logits, unsquashed(value)

    def recurrent(self, latent, action):
        latent, reward = self.step(latent, action)
        logits, value = self.predict(latent)
        return unsquashed(reward), torch.full_like(value, self.gamma), logits, unsquashed(value), latent


class Policy(drl.TorchPolicy):
    """Searches in all environments at once, and stores what the search found."""

    @staticmethod
    def build(config, network, spec):
        return build(network, spec)

    @staticmethod
    def extra_columns(config, network, spec):
        policy = drl.Column((spec.action.size,), "float32")
        return {"policy": policy, "value": drl.Column((), "float32"), "is_random": drl.Column((), "bool")}

    def search(self, obs, noise):
        model = Model(self.modules, self.config.gamma, self.action.size)
        return drl.search.gumbel(model, obs, self.config.simulations, noise)

    def sample(self, obs, last):
        found = self.search(obs, self.rng.gumbel(size=(len(obs), self.action.size)))
        columns = {"policy": found.policy, "value": found.value}
        return torch.from_numpy(found.action), {name: torch.from_numpy(x).float() for name, x in columns.items()}

    def warm_up(self, obs, last):
        return {"policy": torch.zeros(len(obs), self.action.size), "value": torch.zeros(len(obs))}

    def choose(self, obs):
        return torch.from_numpy(self.search(obs, np.zeros((len(obs), self.action.size))).action)

    def prior(self, obs):
        return Model(self.modules, self.config.gamma, self.action.size).root(obs)[1].argmax(-1)


class Algorithm(drl.Algorithm):
    """Unrolls the model, and learns rewards, the policies of searches, and returns that end in values of searches."""

    policy_parts = ("h", "g", "f")

    def __init__(self, config, network, spec, seed, context):
        self.config, modules = config, build(network, spec)
        self.params = drl.Params(context, **modules)
        self.optimizer = drl.Optimizer(self.params, dict.fromkeys(modules, config.lr), context)
        self.model = Model(modules, config.gamma, spec.action.size)

    def returns(self, batch):
        """Return n-step returns `[B, L]`; NaN if they would end in a random action's step, which has no search."""
        valid, done = batch["valid"], batch["terminated"]
        own = torch.where(batch["is_random"], torch.nan, batch["value"])
        goes_on = valid & (done | torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1))
        result = own
        for _ in range(self.config.n_step):
            later = batch["discount"] * torch.cat([result[:, 1:], own[:, -1:]], 1)
            result = torch.where(goes_on, batch["reward"] + torch.where(done, 0.0, later), own)
        return result

    def update(self, batch, counts):
        valid, target = batch["valid"], self.returns(batch)
        is_past_end = ~valid & (valid & batch["terminated"]).any(1, keepdim=True)  # no more rewards there
        has_value = (valid & ~target.isnan()) | is_past_end
        target = squashed(torch.where(valid & has_value, target, 0.0))
        reward = squashed(torch.where(valid, batch["reward"], 0.0))
        action = torch.where(valid, batch["action"], 0)
        latent, loss = self.model.encode(batch["obs"][:, 0]), 0.0
        for k in range(self.config.unroll + 1):
            logits, value = self.model.predict(latent)
            cross_entropy = -(batch["policy"][:, k] * logits.log_softmax(-1)).sum(-1)
            loss = loss + torch.where(valid[:, k] & ~batch["is_random"][:, k], cross_entropy, 0.0)
            loss = loss + 0.25 * torch.where(has_value[:, k], (value - target[:, k]).square(), 0.0)
            latent, predicted = self.model.step(0.5 * latent + 0.5 * latent.detach(), action[:, k])
            loss = loss + torch.where(valid[:, k] | is_past_end[:, k], (predicted - reward[:, k]).square(), 0.0)
        self.optimizer.minimize(loss := loss.mean())
        return drl.Update({"loss": loss})
