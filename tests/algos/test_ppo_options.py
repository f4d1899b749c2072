import dataclasses

import pytest
import torch
from ppo_reference import CONFIG, CPU, KINDS, SPECS, Reference, make, make_batch, make_policy
from references import flattened
from torch.distributions import Categorical, Normal, kl_divergence

from drl_cli.algos.base import Counts
from drl_cli.algos.on_policy.ppo import Algorithm
from drl_cli.errors import Refused
from drl_cli.losses.distributions import TanhGaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.schedules import RunClock
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec


def equals_an_independent_implementation(kind, **options):
    """Compare four updates with the reference, with all options that change the loss."""
    algorithm = make(kind, **options)
    reference = Reference(algorithm, kind, "tanh")
    for i in range(4):
        update = algorithm.learn(make_batch(kind, i, **options), Counts())
        metrics, _ = reference.update(make_batch(kind, i, **options))
        for name, value in metrics.items():
            assert update.metrics[name].item() == pytest.approx(value, rel=1e-3, abs=1e-4), name
    if algorithm.config.kl_coef:
        assert algorithm.params["kl_weight"].flat.item() == pytest.approx(reference.kl_weight)
        assert reference.kl_weight != algorithm.config.kl_coef
    parts = {"actor": flattened(reference.actor), "critic": flattened(reference.critic), "log_std": reference.log_std}
    for name, theirs in parts.items():
        torch.testing.assert_close(algorithm.params[name].flat.double(), theirs.detach(), rtol=0, atol=1e-4)


OPTIONS = {
    "value clipping": {"value_clip": 0.02},
    "a large KL penalty": {"kl_coef": 2.0, "kl_target": 1e-6},
    "a small KL penalty": {"kl_coef": 0.5, "kl_target": 10.0},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_options_equal_an_independent_implementation(kind, name):
    equals_an_independent_implementation(kind, **OPTIONS[name])


def test_squashed_actions_equal_an_independent_implementation():
    equals_an_independent_implementation("box", squash=True)
    equals_an_independent_implementation(
        "box", squash=True, **OPTIONS["value clipping"], **OPTIONS["a large KL penalty"]
    )


def test_the_squashed_log_probability_is_a_density_of_actions_in_the_unit_interval():
    """The density of one-dimensional actions integrates to 1, and the policy that acts computes the same numbers."""
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    for mean, log_std in ((0.3, -0.7), (1.5, 0.2)):
        squashed = TanhGaussian(torch.full_like(grid, mean), torch.tensor([log_std]).double())
        log_prob = squashed.log_prob(grid)
        assert torch.trapezoid(log_prob.exp(), grid[:, 0]).item() == pytest.approx(1.0, abs=2e-3)
    algorithm = make("box", squash=True)
    obs = torch.randn(500, 5, generator=torch.Generator().manual_seed(0))
    columns = make_policy(algorithm, "box").act(obs.numpy())
    assert (abs(columns["action"]) <= 1).all()
    out, action = algorithm.actor(obs).detach(), torch.from_numpy(columns["action"])
    squashed = algorithm.distribution(out, algorithm.log_std, {})
    log_prob, entropy = squashed.log_prob(action), squashed.entropy_at(action)
    torch.testing.assert_close(log_prob, torch.from_numpy(columns["log_prob"]), rtol=1e-4, atol=1e-4)
    assert entropy.mean().item() == pytest.approx(-log_prob.mean().item(), abs=0.2)
    greedy = make_policy(algorithm, "box").greedy(obs.numpy())
    torch.testing.assert_close(torch.from_numpy(greedy), out.tanh(), rtol=1e-4, atol=1e-5)


def test_the_recorded_log_probability_is_of_the_action_also_where_it_is_rounded_to_1():
    algorithm = make("box", squash=True)
    algorithm.log_std.fill_(2.0)
    obs = torch.zeros(2000, 5)
    columns = make_policy(algorithm, "box").act(obs.numpy())
    assert (abs(columns["action"]) == 1).any()
    squashed = algorithm.distribution(algorithm.actor(obs).detach(), algorithm.log_std, {})
    log_prob = squashed.log_prob(torch.from_numpy(columns["action"]))
    torch.testing.assert_close(torch.from_numpy(columns["log_prob"]), log_prob, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_penalty_is_the_divergence_of_the_new_policy_from_the_old_one(kind):
    """The policies differ much, so that the other direction has another value."""
    algorithm, batch, rng = make(kind, kl_coef=1.0), make_batch(kind, 0), torch.Generator().manual_seed(0)
    rows = {name: batch[name] for name in ("obs", "action", "log_prob")}
    rows |= {"advantage": batch["reward"], "target": batch["reward"], "old_out": 2 * torch.randn(40, 3, generator=rng)}
    out, std = algorithm.actor(batch["obs"]).detach(), torch.full((40, 3), 2.0)
    if kind == "box":
        rows["old_log_std"] = std.log()
        old, by_mean, by_std = Normal(rows["old_out"], std), Normal(out, std), Normal(rows["old_out"], std / 2)
        expected = (kl_divergence(old, by_mean) + kl_divergence(old, by_std)).sum(-1).mean()
    else:
        expected = kl_divergence(Categorical(logits=rows["old_out"]), Categorical(logits=out)).mean()
    _, metrics = algorithm.gradients(rows, ())
    torch.testing.assert_close(metrics["kl"], expected)


@pytest.mark.parametrize(
    "action", [ActionSpec("discrete", 3, "Discrete(3)"), ActionSpec("box", 2, "Box(2,)", is_free=True)]
)
def test_squashing_needs_actions_with_bounds(action):
    with pytest.raises(Refused, match="squash=true needs actions with bounds"):
        make(spec=EnvSpec("x", Column((5,), "float32"), action), squash=True)


def test_the_entropy_coefficient_falls_linearly():
    context = dataclasses.replace(CPU, clock=RunClock(total=1000))
    network = NetworkConfig((16, 12), "tanh", "orthogonal")
    moved = []
    for config, steps in (({"entropy_coef": 0.2, "entropy_end": 0.1}, 500), ({"entropy_coef": 0.15}, 500)):
        algorithm = Algorithm(dataclasses.replace(CONFIG, **config), network, SPECS["discrete"], 0, context)
        algorithm.learn(make_batch("discrete", 0), Counts(0, steps))
        moved.append(algorithm.params.flat.clone())
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=1e-6)


def test_the_contract_with_all_options():
    every = ("algo.epochs=2", "algo.kl_coef=0.5", "algo.value_clip=0.2", "algo.entropy_coef=0.01", "algo.entropy_end=0")
    check_algorithm("ppo", "env=Pendulum-v1", "algo.squash=true", *every, "network.hidden=[8]")
    check_algorithm("ppo", "env=CartPole-v1", *every, "network.hidden=[8]")
