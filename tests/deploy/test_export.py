"""The exported policy has the actions of the trained policy, for every algorithm with every network in every format."""

import math
from pathlib import Path

import numpy as np
import pytest
from choices import some
from graphs import RAW
from policies import make_policy, observations
from test_same_policy import assert_same

from drl_cli.algos.lookup import load_algorithm
from drl_cli.deploy import standalone
from drl_cli.deploy.export import FILES, Parity, difference, export, write_files
from drl_cli.deploy.standalone import Policy
from drl_cli.deploy.trained import with_simulations
from drl_cli.envs.units import ArraySpec
from drl_cli.errors import Refused, UsageError
from drl_cli.runtime.roles.normalization import make_policy as plain_policy
from drl_cli.settings.algorithm import algorithm_of
from drl_cli.testing import Case

BOX = ArraySpec("action", (), (2,), "float32", low=[-1.0, 0.0], high=[1.0, 200.0])
FREE = ArraySpec("action", (), (2,), "float32", low=[None, 0.0], high=[None, 0.5])
TWO = ArraySpec("action", (), (2,), "int64", start=[1, 5], choices=(3, 2))


def test_boxes_differ_in_units_of_half_the_range_or_of_one():
    actions = np.array([[0.0, 100.0], [0.5, 50.0]], np.float32)
    assert difference(BOX, actions, actions + np.array([0.0, 1.0]), []) == pytest.approx(0.01)
    assert difference(BOX, actions, actions - np.array([0.25, 1.0]), []) == pytest.approx(0.25)
    assert difference(FREE, actions, actions + np.array([0.5, 0.0]), []) == pytest.approx(0.5)
    assert difference(FREE, actions, actions + np.array([0.0, 0.125]), []) == pytest.approx(0.125)
    assert math.isnan(difference(BOX, actions, actions * np.nan, []))


def test_choices_differ_by_their_loss_of_value():
    values = [np.array([[1.0, 2.0, 2.5], [0.0, 8.0, 4.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])]
    ours = np.array([[3, 5], [2, 5]])
    assert difference(TWO, ours, ours, values) == 0
    assert difference(TWO, np.array([[2, 6], [2, 6]]), ours, values) == pytest.approx(0.5 / 2.5)
    assert difference(TWO, np.array([[3, 5], [3, 6]]), ours, values) == pytest.approx(4 / 8)
    assert difference(TWO, ours, ours, []) == 0
    assert difference(TWO, np.array([[3, 5], [2, 6]]), ours, []) == math.inf


def parity(largest=0.0, exported=10.0):
    return Parity(1000, largest, 1e-5, 20, 10.0, exported, 0.5)


def test_policies_that_differ():
    assert parity().problem() is None
    assert parity(1e-5, 11.4).problem() is None
    for largest in (2e-5, math.inf, math.nan):
        assert "its actions are up to" in parity(largest).problem()
    assert "its mean return is 11.6" in parity(exported=11.6).problem()
    assert "its mean return is 8.4" in parity(exported=8.4).problem()


ROOT = Path(__file__).parents[2]
SEARCHING = ("gumbel_muzero", "muzero", "sampled_muzero", "tdmpc2")
"""Algorithms whose export has no search. The tests at the end of this file are about them."""
ALGOS = tuple(sorted({path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")}.difference(SEARCHING)))
NETWORKS = tuple(sorted(path.stem for path in (ROOT / "conf" / "network").glob("*.yaml")))
SMALL = ("network.channels=0.25", "network.hidden=[16,16]")
MEMORY = ("gru", "lstm")
BATCH_NORM = ("crossq", "flashsac", "xqc")  # refuse layer norm
HEADS = ("dqn", "dreamer", "iqn", "mrq", "ppo", "rainbow", "sac")
"""One algorithm for each kind of head and of acting. Torsos and memories do not depend on the others."""
GRAPHS = ("torch", "onnx")
MATRIX = [
    *((algo, "mlp", "onnx") for algo in ALGOS),
    *((algo, "mlp", "torch") for algo in HEADS),
    *(
        (algo, network, format)
        for algo in ("dqn", "ppo")
        for network in NETWORKS
        if network != "mlp"
        for format in ("numpy", "onnx")
    ),
]


def environment(algo, network):
    """Return an environment whose actions fit the algorithm and whose observations fit the network."""
    is_box = load_algorithm(algorithm_of(algo)).ACTIONS == ("box",) or algo in ("bc", "mrq", "ppo")
    if network in ("cnn", "resnet"):
        return "everything:Steered-v0" if is_box else "everything:Stacked-v0"
    if network == "multi":
        return "everything:Seen-v0" if is_box else "everything:Looked-v0"
    return "Pendulum-v1" if is_box else "CartPole-v1"


def make(folder, algo, network, *more):
    options = [*SMALL, *RAW, f"network.layer_norm={str(algo not in BATCH_NORM).lower()}", *more]
    return make_policy(folder, f"env={environment(algo, network)}", f"algo={algo}", f"network={network}", *options)


def exported(trained, format, folder):
    write_files(trained, format, folder)
    return Policy(folder)


def assert_parity(trained, policy):
    """Compare two steps, because the second has a recurrent state, and a single row at the end."""
    for seed in range(2):
        obs, masks = observations(trained, 40, seed)
        actions = trained(obs, masks)
        assert_same(trained, policy(obs, masks), actions)
        (part,) = trained.units.outputs
        assert len(np.unique(np.asarray(actions), axis=0)) > 1 or part.choices


@pytest.mark.parametrize("algo", some(ALGOS, *HEADS))
def test_numpy_has_the_actions_of_every_algorithm(algo, tmp_path):
    trained = make(tmp_path, algo, "mlp")
    assert_parity(trained, exported(trained, "numpy", tmp_path))


@pytest.mark.parametrize("network", ["cnn", "multi", "resnet"])
@pytest.mark.parametrize("env", [(), ("env=everything:{}-v0",)], ids=["box", "discrete"])
def test_numpy_has_the_actions_of_mrq_with_every_torso(network, env, tmp_path):
    names = {"cnn": "Stacked", "resnet": "Stacked", "multi": "Looked"}
    options = [text.format(names[network]) for text in env]
    trained = make(tmp_path, "mrq", network, *options, "network.activation=elu")
    policy = exported(trained, "numpy", tmp_path)
    assert_parity(trained, policy)
    assert (policy.values is not None) == bool(env)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["numpy", pytest.param("torch", marks=pytest.mark.exhaustive), "onnx"])
def test_a_mixture_has_the_action_of_its_most_likely_component(format, tmp_path):
    trained = make(tmp_path, "bc", "mlp", "algo.components=3")
    assert_parity(trained, exported(trained, format, tmp_path))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("algo", "network", "format"), MATRIX)
def test_every_format_has_the_actions_of_every_algorithm_and_network(algo, network, format, tmp_path):
    if network in MEMORY and algo == "mrq":
        with pytest.raises(Refused, match=r"network\.memory"):
            make(tmp_path, algo, network)
        return
    trained = make(tmp_path, algo, network)
    assert_parity(trained, exported(trained, format, tmp_path))


ENVS = {"gumbel_muzero": "CartPole-v1", "muzero": "CartPole-v1", "sampled_muzero": "Pendulum-v1"}
FEW = ("network.hidden=[16,16]", "algo.simulations=4")


@pytest.mark.parametrize("algo", ENVS)
def test_the_number_of_simulations_may_change_and_0_plays_the_prior(algo, tmp_path):
    trained = make_policy(tmp_path, f"env={ENVS[algo]}", f"algo={algo}", *FEW)
    params = Case(algo, f"env={ENVS[algo]}", *FEW).algorithm().policy_params()
    size, actions = (200, *trained.spec.obs.shape), {}
    obs = np.random.default_rng(0).standard_normal(size, np.float32)
    for simulations in (None, 4, 0, 30):
        policy = plain_policy(with_simulations(trained.config, simulations), trained.spec, 0)
        policy.load(params)
        actions[simulations] = policy.greedy(obs)
    policy.searches = False
    np.testing.assert_allclose(actions[0], policy.greedy(obs), rtol=1e-6)
    assert np.array_equal(actions[None], actions[4])
    assert not np.array_equal(actions[4], actions[0])
    assert not np.array_equal(actions[4], actions[30])


def test_an_algorithm_without_a_search_takes_no_simulations(tmp_path):
    config = make_policy(tmp_path, "env=CartPole-v1", "algo=dqn").config
    assert with_simulations(config, None) is config
    with pytest.raises(UsageError, match=r"^simulations=0: DQN does not search; leave it out$"):
        with_simulations(config, 0)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ENVS)
def test_the_prior_is_exported(algo, tmp_path):
    trained = make_policy(tmp_path, f"env={ENVS[algo]}", f"algo={algo}", *FEW)
    folder, parity = export(trained, "torch", 3)
    assert parity.largest_difference <= 1e-5
    obs, _ = observations(trained, 30)
    assert len(np.unique(standalone.Policy(folder)(obs))) > 1 or algo != "sampled_muzero"


@pytest.mark.slow
@pytest.mark.parametrize("format", FILES)
def test_the_prior_of_a_planner_is_exported_without_the_memory_of_its_plans(format, tmp_path):
    trained = make_policy(tmp_path, "env=Pendulum-v1", "algo=tdmpc2")
    assert trained.signature["state"] == {"size": 3}
    folder, parity = export(trained, format, 3)
    assert parity.largest_difference <= 1e-5
    policy, (obs, _) = standalone.Policy(folder), observations(trained, 30)
    assert policy.signature["state"] is None
    assert len(np.unique(policy(obs))) > 1
