"""Whether an algorithm learns a probe environment."""

import numpy as np

from drl_cli.algos.base import Counts, Policy
from drl_cli.envs.batch import EnvBatch
from drl_cli.replay.builders import NStepBuilder, RolloutBuilder
from drl_cli.replay.samplers import Uniform
from drl_cli.replay.store import RingStore
from drl_cli.testing.case import Case, tensors
from drl_cli.types import (
    Last,
    flat_columns,
    gathered,
    map_parts,
    transition_schema,
)


def check_learning(name: str, *overrides: str, updates: int = 600) -> None:
    """Raise AssertionError where so many updates, one for each step of 8 environments, do not solve a probe."""
    case = Case(name, "network.hidden=[32,32]", *overrides)
    policy = _learned(case, updates, num_envs=8)
    if case.spec.action.kind == "box":
        goals = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
        error = float(np.square(policy.greedy(goals) - goals).mean())
        assert error < 0.02, f"{name} misses the goals of Reach by {error:.3g} (mean square) after {updates} updates"
    else:
        chosen = policy.greedy(np.eye(3, dtype=np.float32)).tolist()
        assert chosen == [0, 1, 2], f"{name} chooses {chosen} in Choose after {updates} updates, best are [0, 1, 2]"


def _learned(case: Case, updates: int, num_envs: int) -> Policy:
    """The policy after so many updates in a plain loop: envs, builder, store; on-policy each update has a rollout."""
    algo = case.config.algo
    algorithm, envs = case.algorithm(), EnvBatch(case.config.env, case.spec, range(num_envs))
    policy, sampler = case.policy(0, algorithm), Uniform(np.random.default_rng(0))
    builder = RolloutBuilder(algo.gamma) if case.is_on_policy else NStepBuilder(algo.n_step, algo.gamma)
    store = RingStore(transition_schema(case.spec, case.extra), 10_000)
    steps, random_steps = (32, 0) if case.is_on_policy else (1, 20)
    last = Last.none(case.spec, num_envs)
    for i in range(random_steps + updates):
        counts = Counts(max(0, i - random_steps), i * steps * num_envs)
        policy.load(algorithm.policy_params())
        policy.explore(algorithm.exploration(counts.env_steps))
        for _ in range(steps):
            obs = map_parts(np.ndarray.copy, envs.obs)
            columns = policy.random(obs, last) if i < random_steps else policy.act(obs, last)
            step = envs.step(columns["action"])
            builder.append({**flat_columns("obs", obs), **columns, **step.columns()})
            last = Last.of(columns["action"], step.reward, envs.begun)
        rows = builder.take()
        if not case.is_on_policy:
            store.insert(rows)
            rows = store.take(sampler.sample(len(store), 1, 64).slots[0])
        if i >= random_steps:
            algorithm.learn(tensors(gathered(rows)), counts)
    policy.load(algorithm.policy_params())
    return policy
