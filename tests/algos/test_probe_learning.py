"""Every algorithm learns the probes in a plain loop: Algorithm, Policy, builder and store, nothing else."""

import numpy as np
import pytest
import torch

from drl_cli.algos import dqn, ppo, sac
from drl_cli.algos.base import Counts
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.replay.builders import NStepBuilder, RolloutBuilder
from drl_cli.replay.samplers import Uniform
from drl_cli.replay.store import RingStore
from drl_cli.types import transition_schema

NETWORK = NetworkConfig((32, 32), "relu", "uniform")
NUM_ENVS = 8


def sac_config(n_step=1, **options):
    options = {"lr": 3e-3, "alpha_lr": 3e-3, "tau": 0.05, "initial_alpha": 0.1, "target_entropy": None} | options
    return sac.Config(name="sac", gamma=0.9, n_step=n_step, **options)


def learn(module, config, probe, updates, max_episode_steps=None):
    """One update per step of 8 environments, after 20 random ones."""
    env = EnvConfig("probe", f"drl_cli.envs.probes:{probe}-v0", {}, max_episode_steps, 1.0, "none", False, False)
    spec = read_spec(env)
    algorithm = module.Algorithm(config, NETWORK, spec, 0, Context(torch.device("cpu")))
    policy, envs = module.Policy(config, NETWORK, spec, 0), EnvBatch(env, spec, range(NUM_ENVS))
    builder, store = NStepBuilder(config.n_step, config.gamma), RingStore(transition_schema(spec), 10_000)
    sampler = Uniform(np.random.default_rng(0))
    for step in range(20 + updates):
        policy.load(algorithm.policy_params())
        policy.explore(algorithm.exploration(step * NUM_ENVS))
        obs = envs.obs.copy()
        columns = policy.random(obs) if step < 20 else policy.act(obs)
        builder.append({"obs": obs, **columns, **vars(envs.step(columns["action"]))})
        store.insert(builder.take())
        if step >= 20:
            rows = store.take(sampler.sample(len(store), 1, 64)[0][0])
            batch = {name: torch.from_numpy(column) for name, column in rows.items()}
            algorithm.learn(batch, Counts(step - 20, step * NUM_ENVS))
    policy.load(algorithm.policy_params())
    return algorithm, policy


def test_reach():
    """The best action is the observation; an untrained policy gets about -0.2."""
    goals = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
    _, untrained = learn(sac, sac_config(), "Reach", 0)
    _, policy = learn(sac, sac_config(), "Reach", 600)
    assert -np.square(untrained.greedy(goals) - goals).mean() < -0.05
    assert -np.square(policy.greedy(goals) - goals).mean() > -0.02


@pytest.mark.parametrize("n_step", [1, 3])
def test_forever(n_step):
    """1 / (1 - 0.9) = 10 if and only if truncation bootstraps; else, with episodes of 5 steps, below 3.6."""
    config = sac_config(n_step, initial_alpha=1e-3, alpha_lr=1e-9, target_entropy=-1.0)
    algorithm, _ = learn(sac, config, "Forever", 500, max_episode_steps=5)
    actions = torch.linspace(-0.9, 0.9, 7)[:, None]
    q, _ = algorithm.critic.forward(torch.cat([torch.zeros(7, 1), actions], -1))
    assert q.min() > 9.0
    assert q.max() < 11.0


@pytest.mark.parametrize("double", [True, False])
def test_choose(double):
    """The best choice is the observation's index, worth 1, the others 0; choices are 3 to 5 to the environment."""
    config = dqn.Config(
        name="dqn", gamma=0.9, lr=3e-3, double=double, loss="huber", target_period=20,
        epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=800,
    )  # fmt: skip
    algorithm, policy = learn(dqn, config, "Choose", 200)
    assert policy.greedy(np.eye(3, dtype=np.float32)).tolist() == [0, 1, 2]
    q, _ = algorithm.online.forward(torch.eye(3))
    torch.testing.assert_close(q, torch.eye(3), rtol=0, atol=0.2)
    assert policy.epsilon == 0.1


def ppo_config(**options):
    defaults = {"lr": 1e-2, "gae_lambda": 0.9, "clip": 0.2, "epochs": 4, "minibatch_size": 64, "entropy_coef": 0.0}
    defaults |= {"value_coef": 0.5, "seq_len": 8, "normalize_advantage": True, "target_kl": None}
    return ppo.Config(name="ppo", gamma=0.9, n_step=1, **defaults | options)


def learn_on_policy(config, probe, updates, max_episode_steps=None, reward_scale=1.0):
    """Each update gets a rollout of 32 steps of 8 environments."""
    env = EnvConfig("probe", f"drl_cli.envs.probes:{probe}-v0", {}, max_episode_steps, 1.0, "none", False, False)
    spec = read_spec(env)
    context = Context(torch.device("cpu"), optimizer=OptimizerConfig(max_norm=0.5))
    algorithm = ppo.Algorithm(config, NETWORK, spec, 0, context)
    policy, envs = ppo.Policy(config, NETWORK, spec, 0), EnvBatch(env, spec, range(NUM_ENVS))
    builder = RolloutBuilder(config.gamma, reward_scale)
    for _ in range(updates):
        policy.load(algorithm.policy_params())
        for _ in range(32):
            obs = envs.obs.copy()
            columns = policy.act(obs)
            builder.append({"obs": obs, **columns, **vars(envs.step(columns["action"]))})
        algorithm.learn({name: torch.from_numpy(column) for name, column in builder.take().items()}, Counts())
    policy.load(algorithm.policy_params())
    return algorithm, policy


def test_ppo_reaches():
    goals = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
    _, untrained = learn_on_policy(ppo_config(), "Reach", 0)
    _, policy = learn_on_policy(ppo_config(), "Reach", 60)
    assert -np.square(untrained.greedy(goals) - goals).mean() < -0.05
    assert -np.square(policy.greedy(goals) - goals).mean() > -0.02


def test_ppo_chooses():
    algorithm, policy = learn_on_policy(ppo_config(), "Choose", 20)
    assert policy.greedy(np.eye(3, dtype=np.float32)).tolist() == [0, 1, 2]
    value, _ = algorithm.critic.forward(torch.eye(3))
    torch.testing.assert_close(value.flatten(), torch.ones(3), rtol=0, atol=0.2)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_ppo_forever(gae_lambda):
    """As above: the value is 10 if and only if truncated episodes and the ends of rollouts bootstrap."""
    algorithm, _ = learn_on_policy(ppo_config(gae_lambda=gae_lambda), "Forever", 80, max_episode_steps=5)
    value, _ = algorithm.critic.forward(torch.zeros(1, 1))
    assert value.item() == pytest.approx(10.0, abs=0.5)
