"""Policies as a run saves them, without training."""

import numpy as np
from graphs import make_config

from drl_cli.algos.lookup import load_algorithm
from drl_cli.api import Context
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.envs.make import read_spec
from drl_cli.runtime.roles.normalization import Statistics, make_layout
from drl_cli.testing.case import torch

SMALL = ("mode=single", "network.hidden=[16,16]", "network.memory_size=8")


def some_params(config, spec, noise=0.05):
    """Return a parameter vector, with statistics if the config normalises."""
    algorithm = load_algorithm(config.algo.name).Algorithm
    params = algorithm(config.algo, config.network, spec, 0, Context(torch.device("cpu"))).policy_params()
    rng = np.random.default_rng(0)
    params = params + noise * rng.standard_normal(len(params)).astype(np.float32)
    if layout := make_layout(config, spec):
        mean, std = rng.uniform(-1, 1, layout.size), rng.uniform(0.5, 2, layout.size)
        params = Statistics(layout, 9, mean.astype(np.float32), std.astype(np.float32)).join(params)
    return params


def make_policy(folder, *overrides):
    """Write a run into this folder and return its policy. Raise Refused as a run does."""
    config = make_config(*SMALL, *overrides)
    spec = read_spec(config.env)
    load_algorithm(config.algo.name).Policy.check(config.algo, config.network, spec)
    manifest = {"env_steps": 100, "opt_steps": 10}
    return TrainedPolicy(config, spec, some_params(config, spec), folder / "checkpoints" / "step_000000100", manifest)


def observations(policy, num, seed=0):
    space, rng = policy.units.observations, np.random.default_rng(seed)
    space.seed(seed)
    masks = [part for part in policy.units.inputs if part.name == "action_mask" and not part.path]
    batch = policy.units.joined([space.sample() for _ in range(num)])
    return batch, rng.random((num, *masks[0].shape)) < 0.4 if masks else None


def row(tree, i):
    if isinstance(tree, dict):
        return {key: row(part, i) for key, part in tree.items()}
    return tuple(row(part, i) for part in tree) if isinstance(tree, tuple) else tree[i]
