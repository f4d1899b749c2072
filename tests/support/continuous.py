"""Algorithms for continuous actions: small copies of them, batches, and copies of their files with a fault."""

import dataclasses

import torch
from confs import algo_config

from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import ActionSpec, Column, EnvSpec

SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("box", 3, "Box(3,)"))
NETWORK = NetworkConfig((16, 12), "tanh", "uniform")


def config_of(module, **options):
    name = module.__name__.rpartition(".")[2]
    return dataclasses.replace(algo_config(name, module.Config), **options)


def make(module, seed=0, spec=SPEC, network=NETWORK, context=None, **options):
    """Return a new algorithm; its target networks differ from its networks."""
    torch.manual_seed(seed)
    context = context or Context(torch.device("cpu"))
    algorithm = module.Algorithm(config_of(module, **options), network, spec, seed, context)
    for target in algorithm.params.targets.values():
        target.flat.add_(0.3 * torch.randn(target.flat.shape))
    return algorithm


def policy_of(module, algorithm=None, seed=0, spec=SPEC, network=NETWORK, **options):
    policy = module.Policy(config_of(module, **options), network, spec, seed)
    policy.load((algorithm or make(module, spec=spec, network=network)).policy_params())
    return policy


def make_batch(seed=0, rows=32, is_weighted=True):
    rng = torch.Generator().manual_seed(seed)
    terminated = torch.rand(rows, generator=rng) < 0.2
    batch = {
        "obs": torch.randn(rows, 5, generator=rng),
        "action": torch.rand(rows, 3, generator=rng) * 2 - 1,
        "reward": torch.randn(rows, generator=rng),
        "next_obs": torch.randn(rows, 5, generator=rng),
        "discount": torch.where(terminated, 0.0, 0.99),
        "terminated": terminated,
        "truncated": torch.zeros(rows, dtype=torch.bool),
    }
    return batch | ({"weight": torch.rand(rows, generator=rng) + 0.5} if is_weighted else {})


def in_double(batch):
    return {name: column.double() if column.is_floating_point() else column for name, column in batch.items()}


def doubled(batch):
    return (batch[name].double() for name in ("obs", "action", "reward", "next_obs", "discount", "weight"))


def gradient(*networks):
    """Return the gradients of networks of `references.sequential`, in the order of an algorithm's parameters."""
    layers = [layer for network in networks for layer in network if isinstance(layer, torch.nn.Linear)]
    return torch.cat([part for layer in layers for part in (layer.weight.grad.t().flatten(), layer.bias.grad)])
