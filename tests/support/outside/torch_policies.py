"""Policies as users might write them, with the learner of DQN."""

import numpy as np
import torch
from torch import nn

from drl_cli.algos.value import dqn
from drl_cli.api import Categorical, Policy, RandomActions, TorchPolicy, torso


class Net(nn.Module):
    def __init__(self, network, spec):
        super().__init__()
        self.torso = torso(network, spec)
        self.layers = nn.Sequential(nn.Linear(self.torso.size, 8), nn.Tanh(), nn.Linear(8, spec.action.size))

    def forward(self, obs):
        return self.layers(self.torso(obs))


class Chooses(TorchPolicy):
    """Chooses the best action by a torch module."""

    @staticmethod
    def build(config, network, spec):
        return {"net": Net(network, spec)}

    def choose(self, obs):
        return self.modules["net"](obs).argmax(-1)


class Fixed(Chooses):
    """A policy whose module takes batches of one size only."""

    def choose(self, obs):
        return torch.stack([each.argmax(-1) for each in self.modules["net"](obs)[: len(obs)].unbind(0)])


class Searches(Chooses):
    """A policy whose search chooses the worst action of the prior, with a loop that can't be traced."""

    def prior(self, obs):
        return self.modules["net"](obs).argmax(-1)

    def choose(self, obs):
        return torch.stack(
            [
                min(enumerate(each.tolist()), key=lambda pair: pair[1])[0] * torch.ones((), dtype=torch.int64)
                for each in self.modules["net"](obs)
            ]
        )


class Remembers(Chooses):
    """A stochastic policy with a memory: the step of the episode turns the logits."""

    memory_size = 1

    def distribution(self, obs, last):
        self.memory = self.memory + 1
        logits = self.modules["net"](obs)
        return Categorical(logits * torch.cos(3.0 * self.memory)), {}

    choose = TorchPolicy.choose


class Continues(Remembers):
    """A policy that reads the last reward, which an export can't know."""

    def distribution(self, obs, last):
        return Categorical(self.modules["net"](obs) * last.reward[:, None]), {}


class Reads(Chooses):
    """A policy in which Python reads a tensor's values."""

    def choose(self, obs):
        return torch.tensor([max(range(len(row)), key=row.__getitem__) for row in self.modules["net"](obs).tolist()])


class Sorts(Chooses):
    """A policy with an operation that has no numpy form."""

    def choose(self, obs):
        return self.modules["net"](obs).sort(-1).indices[:, -1]


class Own(dqn.Policy):
    """A policy with its own `greedy`."""

    def greedy(self, obs, last=None):
        return super().greedy(obs, last)


class Memory(RandomActions):
    """Acts by the step of the episode, the last reward and action, which an export can't know."""

    def __init__(self, config, network, spec, seed):
        super().__init__(spec, seed)
        self.count = np.zeros(0, np.int64)

    load = act = Policy.load

    def greedy(self, obs, last=None):
        count = self.count if len(self.count) == len(obs) else np.zeros(len(obs), np.int64)
        self.count = np.where(last.begins, 0, count + 1)
        return (self.count + last.action + last.reward.astype(np.int64)) % self.action.size
