import dataclasses

import numpy as np
import pytest
import torch
from ppo_reference import CONFIG, CPU, KINDS, SPECS, Reference, make, make_batch, make_policy
from references import flattened
from torch.distributions import Categorical, Normal, kl_divergence

from drl_cli.algos.base import Counts
from drl_cli.algos.on_policy.ppo import Algorithm, Policy, check, distribution
from drl_cli.errors import Refused
from drl_cli.networks.config import NetworkConfig
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec
from drl_cli.utils.run_clock import RunClock


def networks(mlp):
    return mlp.on(mlp.flat.data)


def test_epochs_end_when_the_policy_has_changed_too_much():
    batch = make_batch("box", 0)
    assert make(target_kl=1e-9).learn(batch, Counts()).steps == 4
    assert make(target_kl=1e9).learn(batch, Counts()).steps == 12
    moved = make(epochs=1).learn(batch, Counts()).metrics["approx_kl"].item()
    assert make(epochs=2, target_kl=moved).learn(batch, Counts()).steps == 8  # the limit itself is allowed


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_neither_metrics_nor_gradients(kind):
    """This includes approx_kl, by which `target_kl` ends the epochs."""
    algorithm, batch = make(kind), make_batch(kind, 3)
    rows = {name: batch[name] for name in ("obs", "action", "log_prob")} | {
        "advantage": batch["reward"],
        "target": batch["reward"],
    }
    loss, expected = algorithm.minibatches.gradients({name: column[:30] for name, column in rows.items()}, ())
    grad = algorithm.params.grad.clone()
    real = torch.cat([torch.full((30,), 4 / 3), torch.zeros(10)])
    rows["log_prob"][30:] -= 1.0
    same, metrics = algorithm.minibatches.gradients(rows | {"weight": real}, ())
    torch.testing.assert_close((same, metrics), (loss, expected))
    torch.testing.assert_close(algorithm.params.grad, grad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_the_recorded_log_probability_is_correct(kind, activation):
    algorithm = make(kind, activation)
    networks(algorithm.nets.actor).init("orthogonal", torch.Generator().manual_seed(3))  # a last layer of full size
    log_std = algorithm.params["log_std"].flat
    log_std += torch.tensor([-1.0, 0.3, 0.5])[: len(log_std)]
    obs = np.random.default_rng(0).standard_normal((500, 5)).astype(np.float32)
    columns = make_policy(algorithm, kind, activation=activation).act(obs)
    reference = Reference(algorithm, kind, activation)
    action = torch.from_numpy(columns["action"])
    log_prob, _ = reference.log_prob_and_entropy(torch.from_numpy(obs).double(), action)
    np.testing.assert_allclose(columns["log_prob"], log_prob.detach(), rtol=1e-4, atol=1e-4)
    if kind == "box":
        assert (np.abs(columns["action"]) > 1).any()  # unbounded here, clipped by the environment


@pytest.mark.parametrize(("kind", "density"), [("box", 1 / 2**3), ("discrete", 1 / 3)])
def test_random_actions_have_the_density_of_a_uniform_distribution(kind, density):
    log_prob = make_policy(make(kind), kind).random(np.zeros((5, 5), np.float32))["log_prob"]
    np.testing.assert_allclose(log_prob, np.full(5, np.log(density)), rtol=1e-6)


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_likeliest_choice_or_the_mean_within_the_bounds(kind, is_free):
    spec = dataclasses.replace(SPECS[kind], action=dataclasses.replace(SPECS[kind].action, is_free=is_free))
    algorithm, obs = make(kind, spec=spec), np.random.default_rng(0).standard_normal((200, 5)).astype(np.float32)
    networks(algorithm.nets.actor).init("orthogonal", torch.Generator().manual_seed(3))
    out, policy = algorithm.nets.actor(torch.from_numpy(obs)).detach(), Policy(CONFIG, algorithm.network, spec, 0)
    policy.load(algorithm.policy_params())
    assert (out.abs() > 1).any()
    expected = out.argmax(-1) if kind == "discrete" else out if is_free else out.clamp(-1, 1)
    torch.testing.assert_close(torch.from_numpy(policy.greedy(obs)), expected)


def test_explained_variance_compares_values_with_their_targets():
    """With discount 0, the targets are the rewards."""
    algorithm, batch = make(), make_batch("box", 1)
    batch["discount"] = torch.zeros_like(batch["discount"])
    value = algorithm.nets.critic(batch["obs"])[:, 0].detach()
    expected = 1 - (batch["reward"] - value).var(correction=0) / batch["reward"].var(correction=0)
    assert float(algorithm.learn(batch, Counts()).metrics["explained_variance"]) == pytest.approx(
        float(expected), rel=1e-4
    )
    assert float(make().learn(batch | {"reward": value}, Counts()).metrics["explained_variance"]) == pytest.approx(1.0)
    constant = make().learn(batch | {"reward": torch.zeros_like(value)}, Counts()).metrics["explained_variance"]
    assert torch.isfinite(constant)
    diverged = make().learn(batch | {"reward": batch["reward"] * torch.nan}, Counts()).metrics["explained_variance"]
    assert not torch.isfinite(diverged)  # 1 would look like a perfect critic


def equals_an_independent_implementation(kind, activation="tanh", **options):
    """Compare four updates with the reference, with options that change the loss."""
    algorithm = make(kind, activation, **options)
    reference, start = Reference(algorithm, kind, activation), algorithm.params["actor"].flat.clone()
    for i in range(4):
        update = algorithm.learn(make_batch(kind, i, **options), Counts())
        metrics, steps = reference.update(make_batch(kind, i, **options))
        assert update.steps == steps == 3 * 4  # 40 rows in minibatches of 12, 12, 12 and 4
        assert update.metrics.keys() - {"kl", "kl_weight"} == metrics.keys()
        for name, value in metrics.items():
            assert update.metrics[name].item() == pytest.approx(value, rel=1e-3, abs=1e-4), name
    if algorithm.config.kl_coef:
        assert algorithm.params["kl_weight"].flat.item() == pytest.approx(reference.kl_weight)
        assert reference.kl_weight != algorithm.config.kl_coef
    assert (algorithm.params["actor"].flat - start).abs().max() > 3e-3
    parts = {"actor": flattened(reference.actor), "critic": flattened(reference.critic), "log_std": reference.log_std}
    for name, theirs in parts.items():
        torch.testing.assert_close(algorithm.params[name].flat.double(), theirs.detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("normalize_advantage", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("kind", KINDS)
def test_updates_equal_an_independent_implementation(kind, activation, normalize_advantage):
    equals_an_independent_implementation(kind, activation, normalize_advantage=normalize_advantage)


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


@pytest.mark.parametrize("log_std", [0.0, 2.0])
def test_the_squashed_policy_records_the_log_probability_of_its_actions(log_std):
    """Also of actions that are rounded to 1, with the larger deviation."""
    algorithm, obs = make("box", squash=True), torch.randn(500, 5, generator=torch.Generator().manual_seed(0))
    algorithm.params["log_std"].flat.fill_(log_std)
    policy = make_policy(algorithm, "box")
    columns = {name: torch.from_numpy(column) for name, column in policy.act(obs.numpy()).items()}
    assert (columns["action"].abs() == 1).any() == (log_std > 0)
    out = algorithm.nets.actor(obs).detach()
    squashed = distribution(algorithm.config, algorithm.spec, out, algorithm.params["log_std"].flat, None)
    torch.testing.assert_close(squashed.log_prob(columns["action"]), columns["log_prob"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(policy.greedy(obs.numpy())), out.tanh(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_penalty_is_the_divergence_of_the_new_policy_from_the_old_one(kind):
    """The policies differ much, so that the other direction has another value."""
    algorithm, batch, rng = make(kind, kl_coef=1.0), make_batch(kind, 0), torch.Generator().manual_seed(0)
    rows = {name: batch[name] for name in ("obs", "action", "log_prob")}
    rows |= {"advantage": batch["reward"], "target": batch["reward"], "old_out": 2 * torch.randn(40, 3, generator=rng)}
    out, std = algorithm.nets.actor(batch["obs"]).detach(), torch.full((40, 3), 2.0)
    if kind == "box":
        rows["old_log_std"] = std.log()
        old, by_mean, by_std = Normal(rows["old_out"], std), Normal(out, std), Normal(rows["old_out"], std / 2)
        expected = (kl_divergence(old, by_mean) + kl_divergence(old, by_std)).sum(-1).mean()
    else:
        expected = kl_divergence(Categorical(logits=rows["old_out"]), Categorical(logits=out)).mean()
    _, metrics = algorithm.minibatches.gradients(rows, ())
    torch.testing.assert_close(metrics["kl"], expected)


@pytest.mark.parametrize(
    "action", [ActionSpec("discrete", 3, "Discrete(3)"), ActionSpec("box", 2, "Box(2,)", is_free=True)]
)
def test_squashing_needs_actions_with_bounds(action):
    with pytest.raises(Refused, match="squash=true needs actions with bounds"):
        check(dataclasses.replace(CONFIG, squash=True), None, EnvSpec("x", Column((5,), "float32"), action))


def test_the_entropy_coefficient_falls_linearly():
    context = dataclasses.replace(CPU, clock=RunClock(total=1000))
    network = NetworkConfig((16, 12), "tanh", "orthogonal")
    moved = []
    for config, steps in (({"entropy_coef": 0.2, "entropy_end": 0.1}, 500), ({"entropy_coef": 0.15}, 500)):
        algorithm = Algorithm(dataclasses.replace(CONFIG, **config), network, SPECS["discrete"], 0, context)
        algorithm.learn(make_batch("discrete", 0), Counts(0, steps))
        moved.append(algorithm.params.flat.clone())
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_contract_with_all_options():
    every = ("algo.epochs=2", "algo.kl_coef=0.5", "algo.value_clip=0.2", "algo.entropy_coef=0.01", "algo.entropy_end=0")
    check_algorithm("ppo", "env=Pendulum-v1", "algo.squash=true", *every, "network.hidden=[8]")
    check_algorithm("ppo", "env=CartPole-v1", *every, "network.hidden=[8]")
