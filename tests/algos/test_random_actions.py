"""The density of random actions, by which an on-policy algorithm weighs what it learns from them."""

import numpy as np
import pytest
from graphs import make_config

from drl_cli.algos.lookup import load_algorithm
from drl_cli.envs.make import read_spec


@pytest.mark.parametrize(
    ("env", "density"),
    [("LunarLanderContinuous", 1 / 2**2), ("Pendulum-v1", 1 / 2), ("CartPole-v1", 1 / 2), ("LunarLander", 1 / 4)],
)
def test_random_actions_are_uniform_over_all_dimensions(env, density):
    config = make_config(f"env={env}", "algo=ppo")
    spec = read_spec(config.env)
    policy = load_algorithm("ppo").Policy(config.algo, config.network, spec, 0)
    log_prob = policy.random(np.zeros((5, *spec.obs.shape), spec.obs.dtype))["log_prob"]
    np.testing.assert_allclose(log_prob, np.full(5, np.log(density)), rtol=1e-6)
