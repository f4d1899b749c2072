"""SAC learns the probes in a plain loop: Algorithm, Policy, NStepBuilder and RingStore, nothing else."""

import numpy as np
import pytest
import torch

from drl_cli.algos.sac import Algorithm, Config, Policy
from drl_cli.envs.batch import EnvBatch
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import read_spec
from drl_cli.networks.mlp import NetworkConfig
from drl_cli.replay.builders import NStepBuilder
from drl_cli.replay.samplers import Uniform
from drl_cli.replay.store import RingStore
from drl_cli.types import transition_schema

NETWORK = NetworkConfig((32, 32), "relu", "uniform")
NUM_ENVS = 8


def learn(probe, updates, n_step=1, max_episode_steps=None, **options):
    """One update per step of 8 environments, after 20 random ones."""
    options = {"lr": 3e-3, "alpha_lr": 3e-3, "tau": 0.05, "initial_alpha": 0.1, "target_entropy": None} | options
    config = Config("sac", 0.9, n_step, **options)
    env = EnvConfig("probe", f"drl_cli.envs.probes:{probe}-v0", {}, max_episode_steps, 1.0)
    spec = read_spec(env)
    algorithm = Algorithm(config, NETWORK, spec, 0, torch.device("cpu"))
    policy, envs = Policy(config, NETWORK, spec, 0), EnvBatch(env, spec, range(NUM_ENVS))
    builder, store = NStepBuilder(n_step, config.gamma), RingStore(transition_schema(spec), 10_000)
    sampler = Uniform(np.random.default_rng(0))
    for step in range(20 + updates):
        policy.load(algorithm.policy_params())
        obs = envs.obs.copy()
        columns = policy.random(NUM_ENVS) if step < 20 else policy.act(obs)
        builder.append({"obs": obs, **columns, **vars(envs.step(columns["action"]))})
        store.insert(builder.take())
        if step >= 20:
            rows = store.take(sampler.sample(len(store), 1, 64).slots[0])
            algorithm.update({name: torch.from_numpy(column) for name, column in rows.items()})
    policy.load(algorithm.policy_params())
    return algorithm, policy


def test_reach():
    """The best action is the observation; an untrained policy gets about -0.2."""
    goals = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
    _, untrained = learn("Reach", 0)
    _, policy = learn("Reach", 600)
    assert -np.square(untrained.greedy(goals) - goals).mean() < -0.05
    assert -np.square(policy.greedy(goals) - goals).mean() > -0.02


@pytest.mark.parametrize("n_step", [1, 3])
def test_forever(n_step):
    """1 / (1 - 0.9) = 10 if and only if truncation bootstraps; else, with episodes of 5 steps, below 3.6."""
    algorithm, _ = learn(
        "Forever", 500, n_step, max_episode_steps=5, initial_alpha=1e-3, alpha_lr=1e-9, target_entropy=-1.0
    )
    actions = torch.linspace(-0.9, 0.9, 7)[:, None]
    q, _ = algorithm.critic.forward(torch.cat([torch.zeros(7, 1), actions], -1))
    assert q.min() > 9.0
    assert q.max() < 11.0
