import numpy as np
import pytest
import torch
from continuous import make, policy_of
from learners import IMAGE, TREE, mapped, stacked, values

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.types import ActionSpec, EnvSpec, PreviousStep

FAMILY = [
    name
    for name in algorithms()
    if load_algorithm(name).ACTIONS == ("box",)
    and ".model_based." not in load_algorithm(name).__name__
    and name != "reppo"  # it has its own file
]
DETERMINISTIC = ["ddpg", "d4pg", "rebrac", "td3", "td3_bc"]


@pytest.mark.parametrize("name", [n for n in FAMILY if n != "fql"])  # it has two actors
@pytest.mark.parametrize("obs", [IMAGE, TREE], ids=["image", "tree"])
def test_images_and_dicts_are_learned_from_and_acted_on(name, obs):
    """An update changes every torso, and the numpy policy has the greedy actions of the trainer's actor."""
    module, spec = load_algorithm(name), EnvSpec("x", obs, ActionSpec("box", 2, "Box(2,)"))
    algorithm, rng = make(module, spec=spec), np.random.default_rng(0)
    before = {key: p.clone() for part, m in algorithm.params.modules.items() for key, p in named(part, m)}
    for i in range(2):
        algorithm.learn(random_rows(obs, rng), Counts(i))
    after = {key: p for part, m in algorithm.params.modules.items() for key, p in named(part, m)}
    assert [key for key in before if torch.equal(before[key], after[key])] == []
    policy, seen = policy_of(module, algorithm, spec=spec), draw(obs, 6, rng)
    algorithm.params.modules["actor"].eval()
    with torch.no_grad():
        function = getattr(policy, "function", module.policy)
        out = function(algorithm.nets, mapped(seen, torch.from_numpy), {"noise": 0.0}).mode
    np.testing.assert_allclose(policy.greedy(seen), out, rtol=1e-4, atol=1e-5)


def named(part, module):
    return [(f"{part}.{key}", parameter) for key, parameter in module.named_parameters() if parameter.requires_grad]


def draw(obs, rows, rng):
    return (
        {path: values(one, rows, rng) for path, one in obs.items()} if isinstance(obs, dict) else values(obs, rows, rng)
    )


def random_rows(obs, rng, rows=8):
    columns = {"obs": draw(obs, rows, rng), "next_obs": draw(obs, rows, rng)}
    columns |= {"action": rng.uniform(-1, 1, (rows, 2)).astype(np.float32)}
    columns |= {"reward": rng.standard_normal(rows).astype(np.float32), "discount": np.full(rows, 0.9, np.float32)}
    columns |= {"past_return": rng.standard_normal(rows).astype(np.float32)}  # flashsac
    columns |= {"terminated": np.zeros(rows, np.bool_), "cut": np.arange(rows) % 4 == 3}  # reppo: rollouts of 4 steps
    return stacked([columns])


def test_the_options_of_the_optimizer_are_those_of_the_papers():
    """Adam's betas of CrossQ, the clipped critics of MR.Q, and learning rates that differ by network."""
    soft, dual = {"lr": 1e-3, "alpha_lr": 2e-3}, {"lr": 1e-3, "dual_lr": 4e-3}
    crossq, mpo = make(load_algorithm("crossq"), **soft).optimizer, make(load_algorithm("mpo"), **dual).optimizer
    mrq = make(load_algorithm("mrq"), lr=1e-3, encoder_lr=5e-3, value_max_norm=7.0).optimizer
    assert {name: (part.lr, part.betas) for name, part in crossq.parts.items()} == {
        **dict.fromkeys(("actor", "critic"), (1e-3, (0.5, 0.999))),
        "log_alpha": (2e-3, None),
    }
    assert mpo.lrs == {"actor": 1e-3, "critic": 1e-3, "duals": 4e-3}
    assert mrq.lrs == {**dict.fromkeys(("state", "pair", "model"), 5e-3), "value": 1e-3, "actor": 1e-3}
    assert mrq.limits == {"value": 7.0}


def last_step(begins):
    return PreviousStep(np.zeros((len(begins), 3)), np.zeros(len(begins), np.float32), np.array(begins))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_ornstein_uhlenbeck_noise(name):
    """Each environment and dimension has its own noise, which follows the equation and begins at 0 in each episode."""
    policy = policy_of(load_algorithm(name), noise=0.2, noise_kind="ou", ou_theta=0.15)
    one, two, three = (
        0.2 * policy.noise.draw(3, last_step(begins), policy.rng)
        for begins in ([True] * 3, [False] * 3, [False, True, True])
    )
    assert len(np.unique(one)) == one.size
    noise = 0.2 * np.random.default_rng(0).standard_normal((3, 3, 3), np.float32)
    np.testing.assert_allclose(one, noise[0], rtol=1e-6)
    np.testing.assert_allclose(two, (1 - 0.15) * one + noise[1], rtol=1e-5)
    np.testing.assert_allclose(three, np.float32([[1 - 0.15], [0], [0]]) * two + noise[2], rtol=1e-5)


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_exploration_is_the_greedy_action_and_noise_and_goes_on_from_a_state(name, kind):
    module, obs = load_algorithm(name), np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    policy, other = (policy_of(module, noise=0.3, noise_kind=kind, seed=seed) for seed in (0, 9))
    policy.act(obs, last_step([True] * 4))
    other.load_state(policy.state())
    acted, same = (one.act(obs, last_step([False] * 4))["action"] for one in (policy, other))
    np.testing.assert_array_equal(acted, same)
    rng = np.random.default_rng(0)
    first, second = (0.3 * rng.standard_normal((4, 3), np.float32) for _ in range(2))
    noise = second if kind == "gaussian" else 0.85 * first + second
    np.testing.assert_allclose(acted, np.clip(policy.greedy(obs) + noise, -1, 1), rtol=1e-4, atol=1e-5)
