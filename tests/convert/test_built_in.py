"""The policies of drl-cli's own algorithms act in numpy. `numpy_program` compares them with their torch modules."""

import numpy as np
import pytest
from choices import some
from graphs import make_config

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.envs.make import read_spec
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.roles.normalization import make_policy, numpy_program
from drl_cli.types import PreviousStep, random_obs

IN_TORCH = ("dreamer", "flashsac", "gumbel_muzero", "muzero", "sampled_muzero", "tdmpc2")
MASKED, BOX = "drl_cli.envs.probes:Masked-v0", "Pendulum-v1"
RATES = "replay=prioritized replay.initial_priority=worker"
PLAIN = [(name, "") for name in algorithms() if name not in IN_TORCH]
OPTIONS = [
    ("dqn", f"algo.dueling=true algo.noisy=true {RATES}"),
    ("dqn", "algo.dueling=true algo.temperature=0.1"),
    ("dqn", "network.memory=lstm replay=sequences"),
    ("c51", f"algo.risk=power algo.dueling=true {RATES}"),
    ("qr_dqn", f"algo.dueling=true {RATES}"),
    ("iqn", f"algo.noisy=true algo.dueling=true {RATES}"),
    ("ppo", "algo.squash=true"),
    ("ppo", "network.memory=gru"),
    ("sac", "algo.noise_kind=pink"),
    ("sac", "network.layer_norm=true network.activation=elu"),
]


def made(name, options=""):
    has_box = "box" in load_algorithm(name).ACTIONS
    config = make_config(
        f"env={BOX if has_box else MASKED}", f"algo={name}", "network.hidden=[16,16]", *options.split()
    )
    return config, read_spec(config.env)


@pytest.mark.parametrize(("name", "options"), [*some(PLAIN, *PLAIN[::4]), *OPTIONS])
def test_a_policy_is_converted(name, options):
    program, form = numpy_program(*made(name, options))
    assert form == "numpy"
    assert ("priorities" in program.columns) == (RATES in options)


def test_repeated_random_actions_stay_in_torch():
    assert numpy_program(*made("dqn", "algo.epsilon_repeat=4"))[1].startswith("torch (Python reads")


@pytest.mark.parametrize("setting", ["ladder of temperatures", "temperature of 0"])
def test_a_program_takes_one_temperature_for_all_environments_or_one_for_each(setting):
    config, spec = made("dqn", "algo.temperature=0.1")
    program, _ = numpy_program(config, spec)

    policies = [make_policy(config, spec, 0, each) for each in (None, program)]
    obs, last = random_obs(spec.obs, 200, np.random.default_rng(0)), PreviousStep.none(spec, 200)
    temperature = np.repeat([1e-3, 100.0], 100) if "ladder" in setting else 0.0
    vector = make_trainer(config, spec, "cpu", 0).publish(0, 0)[1]
    actions = []
    for policy in policies:
        policy.load(vector)
        policy.explore({"epsilon": np.linspace(0, 1, 200), "temperature": temperature})
        actions.append(policy.act(obs, last)["action"])
    assert np.array_equal(*actions) or setting == "temperature of 0"
    policies[1].explore({"epsilon": 0.0, "temperature": 0.0})
    assert np.array_equal(policies[1].act(obs, last)["action"], policies[1].greedy(obs, last))
