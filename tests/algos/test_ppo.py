"""PPO: whole updates against an independent implementation with autograd, torch.distributions and torch.optim."""

import dataclasses

import numpy as np
import pytest
import torch
from references import flattened, sequential
from torch.distributions import Categorical, Normal

from drl_cli.algos.base import Counts
from drl_cli.algos.on_policy.ppo import Algorithm, Config, Policy, choice_log_prob
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.types import ActionSpec, Column, EnvSpec

MAX_NORM = 0.3
CPU = Context(torch.device("cpu"), optimizer=OptimizerConfig(max_norm=MAX_NORM))
KINDS = ("box", "discrete")
SPECS = {kind: EnvSpec("x", Column((5,), "float32"), ActionSpec(kind, 3, kind)) for kind in KINDS}
CONFIG = Config(
    name="ppo",
    gamma=0.9,
    n_step=1,
    lr=1e-3,
    gae_lambda=0.8,
    clip=0.2,
    epochs=3,
    minibatch_size=12,
    seq_len=4,
    entropy_coef=0.02,
    value_coef=0.5,
    normalize_advantage=True,
    target_kl=None,
)


def make(kind="box", activation="tanh", seed=0, spec=None, **options):
    network = NetworkConfig((16, 12), activation, "orthogonal")
    return Algorithm(dataclasses.replace(CONFIG, **options), network, spec or SPECS[kind], seed, CPU)


def make_policy(algorithm, kind, seed=0, activation="tanh"):
    policy = Policy(CONFIG, NetworkConfig((16, 12), activation, "orthogonal"), SPECS[kind], seed)
    policy.load(algorithm.policy_params())
    return policy


def make_batch(kind, seed, rows=40):
    """Return a rollout of an older policy."""
    rng = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, rows, 5, generator=rng)
    terminated, cut = torch.rand(2, rows, generator=rng) < 0.1
    older = make_policy(make(kind, seed=seed), kind, seed)
    return {
        **{name: torch.from_numpy(column) for name, column in older.act(obs.numpy()).items()},
        "obs": obs,
        "reward": torch.randn(rows, generator=rng),
        "next_obs": next_obs,
        "discount": torch.where(terminated, 0.0, 0.9),
        "terminated": terminated,
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "cut": cut | terminated,
    }


class Reference:
    """PPO as in the paper, on float64 torch.nn modules, starting from an algorithm's parameters and shuffling."""

    def __init__(self, algorithm, kind, activation):
        params = {name: algorithm.params[name].flat.clone() for name in ("actor", "critic", "log_std")}
        self.config, self.is_box = algorithm.config, kind == "box"
        self.shuffle = torch.Generator()
        self.shuffle.set_state(algorithm.state()["generator.shuffle"])
        self.actor = sequential(params["actor"], (5, 16, 12, 3), activation)
        self.critic = sequential(params["critic"], (5, 16, 12, 1), activation)
        self.log_std = params["log_std"].double().requires_grad_()
        self.params = [*self.actor.parameters(), *self.critic.parameters(), *([self.log_std] if self.is_box else [])]
        self.optimizer = torch.optim.Adam(self.params, self.config.lr)

    def log_prob_and_entropy(self, obs, action):
        if not self.is_box:
            distribution = Categorical(logits=self.actor(obs))
            return distribution.log_prob(action), distribution.entropy()
        distribution = Normal(self.actor(obs), self.log_std.exp())
        return distribution.log_prob(action).sum(-1), distribution.entropy().sum(-1)

    def advantages(self, batch):
        value, next_value = self.critic(batch["obs"])[:, 0], self.critic(batch["next_obs"])[:, 0]
        delta = batch["reward"] + batch["discount"] * next_value - value
        advantage = torch.zeros_like(delta)
        for i in reversed(range(len(delta))):
            goes_on = i + 1 < len(delta) and not batch["cut"][i]
            later = batch["discount"][i] * self.config.gae_lambda * advantage[i + 1] if goes_on else 0.0
            advantage[i] = delta[i] + later
        return advantage, advantage + value

    def update(self, batch):
        config = self.config
        batch = {name: c.double() if c.dtype == torch.float32 else c for name, c in batch.items()}
        with torch.no_grad():
            advantage, target = self.advantages(batch)
            explained = 1 - (advantage.var() / target.var()).item()
            if config.normalize_advantage:
                advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
        seen = []
        for _ in range(config.epochs):
            for rows in torch.randperm(len(target), generator=self.shuffle).split(config.minibatch_size):
                log_prob, entropy = self.log_prob_and_entropy(batch["obs"][rows], batch["action"][rows])
                ratio = (log_prob - batch["log_prob"][rows]).exp()
                clipped = ratio.clamp(1 - config.clip, 1 + config.clip) * advantage[rows]
                policy_loss = -torch.min(ratio * advantage[rows], clipped).mean()
                value_loss = 0.5 * (self.critic(batch["obs"][rows])[:, 0] - target[rows]).square().mean()
                loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy.mean()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.params, MAX_NORM)
                self.optimizer.step()
                kl = (ratio - 1 - ratio.log()).mean()
                outside = ((ratio < 1 - config.clip) | (ratio > 1 + config.clip)).double().mean()
                seen.append([x.item() for x in (policy_loss, value_loss, entropy.mean(), kl, outside)])
        means = torch.tensor(seen).mean(0).tolist()
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
        return dict(zip(names, means, strict=True)) | {"explained_variance": explained}, len(seen)


@pytest.mark.parametrize("normalize_advantage", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("kind", KINDS)
def test_updates_equal_an_independent_implementation(kind, activation, normalize_advantage):
    algorithm = make(kind, activation, normalize_advantage=normalize_advantage)
    reference = Reference(algorithm, kind, activation)
    start = algorithm.actor.flat.clone()
    for i in range(4):
        update = algorithm.learn(make_batch(kind, i), Counts())
        metrics, steps = reference.update(make_batch(kind, i))
        assert update.steps == steps == 3 * 4  # 40 rows in minibatches of 12, 12, 12 and 4
        assert update.metrics.keys() == metrics.keys()
        for name, value in metrics.items():
            assert update.metrics[name].item() == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert (algorithm.actor.flat - start).abs().max() > 3e-3
    for own, theirs in (
        (algorithm.actor.flat, flattened(reference.actor)),
        (algorithm.critic.flat, flattened(reference.critic)),
        (algorithm.log_std, reference.log_std.detach()),
    ):
        torch.testing.assert_close(own.double(), theirs, rtol=0, atol=2e-5)


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
    expected, _ = algorithm.gradients({name: column[:30] for name, column in rows.items()} | {"drop": ()})
    grad = algorithm.params.grad.clone()
    real = torch.cat([torch.full((30,), 4 / 3), torch.zeros(10)])
    rows["log_prob"][30:] -= 1.0
    metrics, _ = algorithm.gradients(rows | {"valid_weight": real, "drop": ()})
    torch.testing.assert_close(metrics, expected)
    torch.testing.assert_close(algorithm.params.grad, grad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_the_recorded_log_probability_is_correct(kind, activation):
    algorithm = make(kind, activation)
    algorithm.actor.init("orthogonal", torch.Generator().manual_seed(3))  # a last layer of full size
    algorithm.log_std += torch.tensor([-1.0, 0.3, 0.5])[: len(algorithm.log_std)]
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


@pytest.mark.parametrize("choices", [(5,), (2, 3), (1, 2, 2)])
def test_the_log_probability_of_choices_is_the_sum_over_them(choices):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((40, 5)).astype(np.float32)
    action = np.stack([rng.integers(num, size=40) for num in choices], 1)
    parts = torch.split(torch.from_numpy(logits), list(choices), 1)
    expected = sum(Categorical(logits=part).log_prob(torch.from_numpy(action[:, i])) for i, part in enumerate(parts))
    got = choice_log_prob(logits, action if len(choices) > 1 else action[:, 0], choices)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_greedy_is_the_mean_within_the_bounds_or_the_likeliest_choice():
    obs = np.random.default_rng(0).standard_normal((200, 5)).astype(np.float32)
    for kind in KINDS:
        algorithm = make(kind)
        algorithm.actor.init("orthogonal", torch.Generator().manual_seed(3))
        out = algorithm.actor.forward(torch.from_numpy(obs))[0][0]
        greedy = torch.from_numpy(make_policy(algorithm, kind).greedy(obs))
        if kind == "box":
            torch.testing.assert_close(greedy, out.clamp(-1, 1))
            assert (greedy.abs() == 1).any()
        else:
            assert torch.equal(greedy, out.argmax(-1))


def test_greedy_actions_without_bounds_are_not_clipped():
    free = EnvSpec("x", SPECS["box"].obs, ActionSpec("box", 3, "box", is_free=True))
    algorithm, obs = make("box", spec=free), 3 * np.ones((1, 5), np.float32)
    algorithm.actor.init("orthogonal", torch.Generator().manual_seed(3))
    algorithm.actor.networks[0][-1][:] = 4.0
    policy = Policy(CONFIG, NetworkConfig((16, 12), "tanh", "orthogonal"), free, 0)
    policy.load(algorithm.policy_params())
    assert policy.greedy(obs).max() > 2.0
    assert make_policy(algorithm, "box").greedy(obs).max() == 1.0


def test_the_policy_starts_near_uniform():
    obs = np.random.default_rng(0).standard_normal((100, 5)).astype(np.float32)
    assert np.abs(make_policy(make("box"), "box").greedy(obs)).max() < 0.1
    log_prob = make_policy(make("discrete"), "discrete").act(obs)["log_prob"]
    np.testing.assert_allclose(log_prob, -np.log(3), atol=0.1)


def test_explained_variance_compares_values_with_their_targets():
    """With discount 0, the targets are the rewards."""
    algorithm, batch = make(), make_batch("box", 1)
    batch["discount"] = torch.zeros_like(batch["discount"])
    value = algorithm.critic.forward(batch["obs"])[0][0, :, 0].clone()
    expected = 1 - (batch["reward"] - value).var(correction=0) / batch["reward"].var(correction=0)
    assert float(algorithm.learn(batch, Counts()).metrics["explained_variance"]) == pytest.approx(
        float(expected), rel=1e-4
    )
    assert float(make().learn(batch | {"reward": value}, Counts()).metrics["explained_variance"]) == pytest.approx(1.0)
    constant = make().learn(batch | {"reward": torch.zeros_like(value)}, Counts()).metrics["explained_variance"]
    assert torch.isfinite(constant)
