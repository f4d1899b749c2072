"""Algorithms with observations of every kind and batches as a trainer passes them, for tests."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import torch
from confs import algo_config

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import ActionSpec, Column, EnvSpec, PreviousStep

CPU = Context(torch.device("cpu"))
ACTIONS = {
    "box": ActionSpec("box", 2, "Box(2,)"),
    "discrete": ActionSpec("discrete", 4, "Discrete(4)"),
    "multidiscrete": ActionSpec("multidiscrete", 7, "MultiDiscrete([4 3])", (4, 3)),
}
IMAGE, VECTOR = Column((12, 12, 3), "uint8"), Column((3, 2), "float32")
TREE = {"camera": IMAGE, "arm.angles": Column((3,), "float32"), "gear": Column((), "int32", (5,))}
LOOKS = {"image": (IMAGE, "none"), "tree": (TREE, "none"), "memory": (VECTOR, "lstm"), "tree-memory": (TREE, "gru")}
NO_MEMORY = ("crossq", "flashsac", "mrq", "xqc")
CASES = [
    (name, kind)
    for name in algorithms()
    if ".model_based." not in load_algorithm(name).__name__ and name not in NO_MEMORY
    for kind in load_algorithm(name).ACTIONS
]
"""The algorithms that learn on an encoder, also with a memory."""
BURN_IN, LENGTH = 2, 6


class Learner:
    """An algorithm with its yaml, a kind of observations and, for some kinds, a memory."""

    def __init__(self, name, kind, obs, memory="none", **options):
        self.module, self.action = load_algorithm(name), ACTIONS[kind]
        self.spec = EnvSpec("x", obs, self.action)
        self.network = NetworkConfig((16, 12), "tanh", "uniform", memory=memory, memory_size=5)
        config = algo_config(name, self.module.Config)
        self.config = dataclasses.replace(config, **options)
        self.is_rollout, self.has_memory = "fifo-once" in self.module.TABLES, memory != "none"
        self.context = dataclasses.replace(CPU, burn_in=0 if self.is_rollout or not self.has_memory else BURN_IN)

    def algorithm(self, seed=0):
        torch.manual_seed(seed)  # as a trainer does
        return self.module.Algorithm(self.config, self.network, self.spec, seed, self.context)

    def policy(self, algorithm, seed=0):
        policy = self.module.Policy(self.config, self.network, self.spec, seed)
        policy.load(algorithm.policy_params())
        return policy

    def obs(self, rows, rng):
        """Return random observations `[rows, ...]`; a mask allows about half of the choices, at least one."""
        if isinstance(self.spec.obs, Column):
            return values(self.spec.obs, rows, rng)
        obs = {path: values(column, rows, rng) for path, column in self.spec.obs.items()}
        if "action_mask" in obs:
            begin = 0
            for num in self.action.choices:
                obs["action_mask"][np.arange(rows), begin + rng.integers(num, size=rows)] = True
                begin += num
        return obs

    def rollout(self, algorithm, seed=0, envs=3, steps=10):
        """Return rows `[envs * steps]`, sorted by environment, from the policy of the algorithm."""
        rng, policy = np.random.default_rng(seed), self.policy(algorithm, seed)
        last, rows, obs = PreviousStep.none(self.spec, envs), [], self.obs(envs, rng)
        for t in range(steps):
            columns = policy.act(obs, last)
            ended, next_obs = rng.random(envs) < 0.2, self.obs(envs, rng)
            reward = rng.standard_normal(envs).astype(np.float32)
            columns |= {"obs": obs, "next_obs": next_obs, "reward": reward, "terminated": ended}
            columns |= {"discount": np.where(ended, 0, 0.9).astype(np.float32), "truncated": np.zeros_like(ended)}
            rows.append(columns | {"cut": ended | (t == steps - 1)})
            last = PreviousStep.of(columns["action"], reward, list(np.nonzero(ended)[0]))
            obs = self._begun(next_obs, ended, rng)
        return stacked(rows)

    def _begun(self, obs, ended, rng):
        """Replace the observation if an episode has ended."""
        fresh = self.obs(len(ended), rng)
        if not isinstance(obs, dict):
            return np.where(ended.reshape(-1, *[1] * (obs.ndim - 1)), fresh, obs)
        return {n: np.where(ended.reshape(-1, *[1] * (x.ndim - 1)), fresh[n], x) for n, x in obs.items()}

    def batch(self, algorithm, seed=0, size=8):
        """Return the batch of one update: rows, a rollout, or sequences of `LENGTH` steps with states for a memory."""
        if self.is_rollout:
            return self.rollout(algorithm, seed)
        rows = stacked([self._row(algorithm, seed, size * (LENGTH if self.has_memory else 1))])
        if not self.has_memory:
            return rows
        batch = mapped(rows, lambda x: x.unflatten(0, (size, LENGTH)))
        mask = torch.ones(size, LENGTH, dtype=torch.bool)
        mask[0, :1], mask[1, :3], mask[2, 4:] = False, False, False  # two begin in it, one ends
        batch["next_obs"] = followed(batch["obs"], batch["next_obs"])
        batch = mapped(batch, lambda x: x * mask.view(size, LENGTH, *[1] * (x.ndim - 2)).to(x.dtype))
        state = torch.randn(size, algorithm.encoder.memory.state_size, generator=torch.Generator().manual_seed(seed))
        state[:2] = 0.0
        return batch | {"valid": mask, "state": state / 2}

    def _row(self, algorithm, seed, rows):
        rng, policy = np.random.default_rng(seed), self.policy(algorithm, seed)
        obs = self.obs(rows, rng)
        columns = policy.random(obs, PreviousStep.none(self.spec, rows))
        ended = rng.random(rows) < 0.2
        reward = 2 * rng.standard_normal(rows).astype(np.float32)
        columns = {"action": columns["action"], "obs": obs, "next_obs": self.obs(rows, rng), "reward": reward}
        columns |= {"terminated": ended, "truncated": np.zeros_like(ended)}
        return columns | {"discount": np.where(ended, 0, 0.9).astype(np.float32)}


def first_rows(algorithm, batch):
    """Return the columns of a rollout at the start of its first epoch. Make no gradient step."""
    seen, minibatches = [], algorithm.minibatches
    minibatches.of = lambda rollout: [] if seen else seen.append(rollout.rows) or []
    algorithm.learn(dict(batch), Counts())
    del minibatches.of
    return seen[0]


def values(column, rows, rng):
    shape = (rows, *column.shape)
    if column.choices:
        return rng.integers(column.choices[0], size=shape).astype(np.int32)
    if column.dtype == "uint8":
        return rng.integers(256, size=shape).astype(np.uint8)
    return rng.random(shape) < 0.4 if column.dtype == "bool" else rng.standard_normal(shape).astype(np.float32)


def mapped(batch, function):
    """Apply a function to all tensors of a batch, also inside of observations."""
    if not isinstance(batch, dict):
        return function(batch)
    return {name: mapped(x, function) for name, x in batch.items()}


def stacked(steps):
    """Return columns `[E, ...]` of T steps as tensors `[E * T, ...]`, sorted by environment."""
    first = steps[0]
    if isinstance(first, dict):
        return {name: stacked([step[name] for step in steps]) for name in first}
    return torch.from_numpy(np.stack(steps, 1)).flatten(0, 1)


def followed(obs, next_obs):
    """Return next observations of sequences `[B, L, ...]`: those of the next step, or of the last step itself."""
    if isinstance(obs, dict):
        return {name: followed(obs[name], next_obs[name]) for name in obs}
    return torch.cat([obs[:, 1:], next_obs[:, -1:]], 1)


def taken(column, index):
    return mapped(column, lambda x: x[index])


class Plain:
    """A copy of an algorithm's encoder and heads that uses plain autograd row by row."""

    def __init__(self, encoder, **heads):
        self.inputs = encoder.inputs
        self.torso, self.memory = copy.deepcopy(encoder.torso), copy.deepcopy(encoder.memory)
        for module in filter(None, (self.torso, self.memory)):
            module.requires_grad_(True)
            for parameter in module.parameters():
                parameter.grad = None
        self.heads = {
            name: [[p.detach().clone().requires_grad_() for p in network] for network in networks(mlp)]
            for name, mlp in heads.items()
        }

    def features(self, obs):
        return self.inputs.tensor(obs) if self.torso is None else self.torso(obs)

    def unrolled(self, obs, next_obs, state, burn_in=0):
        """Return features `[T, F]` of a chunk `[burn_in + T, ...]` and of its next observations, step by step."""
        now, then = [], []
        for t in range(len(next(iter(obs.values())) if isinstance(obs, dict) else obs)):
            with torch.set_grad_enabled(t >= burn_in):
                out, state = self.memory.step(self.features(taken(obs, slice(t, t + 1))), state)
            if t >= burn_in:
                now.append(out)
                then.append(self.memory.step(self.features(taken(next_obs, slice(t, t + 1))), state)[0])
        return torch.cat(now), torch.cat(then)

    def head(self, name, x):
        """Return the outputs `[networks, N, out]`."""
        return torch.stack([chain(network, x) for network in self.heads[name]])

    def grads(self, part):
        """Return the gradients as one vector in the order of the algorithm's parameters."""
        if part in self.heads:
            parameters = [p for network in self.heads[part] for p in network]
        else:
            parameters = list(getattr(self, part).parameters())
        return torch.cat([p.grad.flatten() for p in parameters])


def networks(mlp):
    """Return the weights and biases of each network of a drl.MLP."""
    return mlp.on(mlp.flat).networks


def target_encoder(algorithm):
    return algorithm.encoder.on(SimpleNamespace(**{n: t.module for n, t in algorithm.params.targets.items()}))


def chain(network, x):
    for i in range(0, len(network), 2):
        x = x @ network[i] + network[i + 1]
        x = torch.tanh(x) if i < len(network) - 2 else x
    return x
