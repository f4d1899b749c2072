import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from continuous import gradient
from learners import LOOKS, Learner, first_rows, mapped
from references import sequential
from test_pqn import q_lambda
from torch.distributions import Normal, kl_divergence

from drl_cli.algos.base import Counts
from drl_cli.errors import UsageError
from drl_cli.testing import Case, check_algorithm
from drl_cli.types import PreviousStep

NUM, WIDTH, ATOMS, V_MIN, V_MAX = 700, 6, 7, -4.0, 5.0
SMALL = (
    *("env=Pendulum-v1", "tuned=none", f"network.hidden=[8,{WIDTH}]", "network.activation=tanh"),
    "network.layer_norm=false",
    *("algo.td_lambda=0.7", f"algo.atoms={ATOMS}", f"algo.v_min={V_MIN}", f"algo.v_max={V_MAX}"),
    *("algo.minibatch_size=null", "algo.initial_alpha=0.3", "algo.initial_beta=0.4", "algo.kl_bound=0.2"),
    *("algo.prediction_coef=0.5", "optimizer.max_norm=null", "trainer.on_nonfinite=stop"),
)
VALUES = torch.linspace(V_MIN, V_MAX, ATOMS, dtype=torch.float64)


def case_of(*overrides):
    """A case whose networks have last layers of full size."""
    case = Case("reppo", *SMALL, *overrides)
    algorithm = case.algorithm()
    for name in ("actor", "critic"):
        algorithm.params[name].flat.normal_(0.0, 0.4, generator=torch.Generator().manual_seed(3))
    return case, algorithm


def networks(params):
    """Actor and critic in float64. The critic has an encoder, a head and a predictor."""
    flat, sizes = params["critic"].flat, ((4, 8, WIDTH, WIDTH), (WIDTH, WIDTH, ATOMS), (WIDTH, WIDTH, WIDTH))
    nums = [sum((a + 1) * b for a, b in pairwise(one)) for one in sizes]
    pieces = torch.split(flat, nums)
    critic = [sequential(piece, one, "tanh") for piece, one in zip(pieces, sizes, strict=True)]
    return sequential(params["actor"].flat, (3, 8, WIDTH, 2), "tanh"), critic


def criticised(critic, obs, action):
    """Return log-probabilities of the values, the embedding and the predicted next embedding."""
    encoder, head, predictor = critic
    out = encoder(torch.cat([obs, action], 1))
    scaled = (out - out.mean(1, keepdim=True)) / (out.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    embedding = scaled.tanh()
    return head(embedding).log_softmax(1), embedding, predictor(embedding)


def sample(out, noise):
    """Return squashed actions and their log-probabilities, from the density of a transformed variable."""
    mean, log_std = out.chunk(2, 1)
    u = mean + log_std.exp() * noise
    density = Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - u.tanh().square())
    return u.tanh(), density.sum(1)


def test_the_columns_are_right():
    case, algorithm = case_of()
    batch = case.batch(0, NUM)
    batch["truncated"] |= torch.rand(NUM, generator=torch.Generator().manual_seed(4)) < 0.1
    batch["cut"] = batch["terminated"] | batch["truncated"]
    assert (batch["truncated"] & ~batch["terminated"]).sum() > 20 < batch["terminated"].sum()
    generator = torch.Generator()
    generator.set_state(algorithm.state()["generator.noise"])
    noise = torch.randn(NUM, 1, generator=generator).double()
    actor, critic = networks(algorithm.params)
    rows = first_rows(algorithm, batch)
    with torch.no_grad():
        action, log_prob = sample(actor(batch["next_obs"].double()), noise)
        log_probs, embedding, _ = criticised(critic, batch["next_obs"].double(), action)
        torch.testing.assert_close(rows["old"].double(), actor(batch["obs"].double()), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(rows["next_embedding"].double(), embedding, rtol=1e-4, atol=1e-4)
        reward = batch["reward"].double() - batch["discount"] * 0.3 * log_prob
        columns = (reward, batch["discount"].double(), log_probs.exp() @ VALUES)
        target = q_lambda(*(column.tolist() for column in columns), batch["cut"], 0.7)
    torch.testing.assert_close(rows["target"].double(), target.double(), rtol=1e-4, atol=1e-4)


def hl_gauss(target):
    gap = (V_MAX - V_MIN) / (ATOMS - 1)
    normal = Normal(target.clamp(V_MIN, V_MAX)[:, None], 0.75 * gap)
    masses = normal.cdf(VALUES + gap / 2) - normal.cdf(VALUES - gap / 2)
    return masses / masses.sum(1, keepdim=True)


def test_the_gradients_are_right():
    _, algorithm = case_of()
    rng = torch.Generator().manual_seed(7)
    rows = {"obs": torch.randn(NUM, 3, generator=rng), "action": 2 * torch.rand(NUM, 1, generator=rng) - 1}
    rows |= {"old": 0.5 * torch.randn(NUM, 2, generator=rng), "noise": torch.randn(NUM, 1, generator=rng)}
    rows |= {"target": 4 * torch.randn(NUM, generator=rng), "weight": torch.rand(NUM, generator=rng) + 0.5}
    rows |= {"terminated": torch.rand(NUM, generator=rng) < 0.3}
    rows |= {"next_embedding": torch.randn(NUM, WIDTH, generator=rng)}
    actor, critic = networks(algorithm.params)
    loss, metrics = algorithm.minibatches.gradients(rows, ())
    rows = {name: column.double() for name, column in rows.items()}
    weight, obs = rows["weight"], rows["obs"]
    log_probs, _, predicted = criticised(critic, obs, rows["action"])
    critic_loss = -(weight * (hl_gauss(rows["target"]) * log_probs).sum(1)).mean()
    error = (1 - rows["terminated"]) * (predicted - rows["next_embedding"]).square().mean(1)
    (critic_loss + 0.5 * (weight * error).mean()).backward()
    wanted = {"critic": gradient(*critic)}
    out = actor(obs)
    action, log_prob = sample(out, rows["noise"])
    q = criticised(critic, obs, action)[0].exp() @ VALUES
    (mean, log_std), (old_mean, old_log_std) = out.chunk(2, 1), rows["old"].chunk(2, 1)
    kl = kl_divergence(Normal(old_mean, old_log_std.exp()), Normal(mean, log_std.exp())).sum(1)
    log_alpha, log_beta = (torch.tensor(math.log(x), dtype=torch.float64, requires_grad=True) for x in (0.3, 0.4))
    actor_loss = (weight * torch.where(kl < 0.2, 0.3 * log_prob - q, 0.4 * kl)).mean()
    assert 100 < (kl < 0.2).sum() < NUM - 100
    actor_loss.backward()
    wanted["actor"] = gradient(actor)
    entropy, mean_kl = -(weight * log_prob.detach()).mean(), (weight * kl.detach()).mean()
    (log_alpha.exp() * (entropy + 0.5)).backward()  # the target entropy is -1/2
    (-log_beta.exp() * (mean_kl - 0.2)).backward()
    wanted |= {"log_alpha": log_alpha.grad.view(1), "log_beta": log_beta.grad.view(1)}
    for name, expected in wanted.items():
        torch.testing.assert_close(algorithm.params[name].grad.double(), expected, rtol=1e-3, atol=1e-5)
    found = {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": entropy, "kl": mean_kl}
    found |= {"prediction_loss": (weight * error).mean(), "q_mean": (weight * (log_probs.exp() @ VALUES)).mean()}
    found |= {"alpha": torch.tensor(0.3), "beta": torch.tensor(0.4), "near": (weight * (kl < 0.2)).mean()}
    assert {name: float(x) for name, x in metrics.items()} == pytest.approx(
        {name: float(x.detach()) for name, x in found.items()}, rel=1e-3, abs=1e-4
    )
    dual_loss = 0.3 * (entropy + 0.5) - 0.4 * (mean_kl - 0.2)
    total = critic_loss + 0.5 * (weight * error).mean() + actor_loss + dual_loss
    assert float(loss) == pytest.approx(float(total.detach()), rel=1e-3)


def test_an_update_is_right():
    """Every epoch has all rows once, with new noise, and the targets and the old policy from before the update."""
    case, algorithm = case_of("algo.epochs=2", "algo.minibatch_size=250")
    seen, gradients = [], algorithm.minibatches.gradients

    def watched(rows, masks):
        seen.append({name: rows[name].clone() for name in ("action", "noise", "old", "target", "next_embedding")})
        return gradients(rows, masks)

    watched.parts = gradients.parts
    algorithm.minibatches.gradients = watched
    batch = case.batch(0, NUM)
    actor, _ = networks(algorithm.params)
    before = {name: algorithm.params[name].flat.clone() for name in algorithm.params.slices}
    update = algorithm.learn(batch, Counts())
    assert (update.steps, len(seen), update.skipped) == (6, 6, 0)
    assert all((algorithm.params[name].flat != before[name]).any() for name in before)
    epochs = [{name: torch.cat([rows[name] for rows in part]) for name in seen[0]} for part in (seen[:3], seen[3:])]
    orders = [epoch["action"][:, 0].argsort() for epoch in epochs]
    assert not torch.equal(*(epoch["action"] for epoch in epochs))
    first, second = ({name: c[order] for name, c in epoch.items()} for epoch, order in zip(epochs, orders, strict=True))
    for name in ("action", "old", "target", "next_embedding"):
        assert torch.equal(first[name], second[name])
    assert (first["noise"] - second["noise"]).abs().mean() > 0.5
    mine = batch["action"][:, 0].argsort()
    assert torch.equal(first["action"], batch["action"][mine])
    torch.testing.assert_close(first["old"].double(), actor(batch["obs"].double())[mine].detach(), rtol=1e-3, atol=1e-4)


def test_without_minibatches_an_epoch_is_one_step():
    case, algorithm = case_of("algo.epochs=3")
    assert algorithm.learn(case.batch(0, 40), Counts()).steps == 3


@pytest.mark.parametrize("where", [slice(None), slice(-1, None)])
def test_infinite_rewards_are_skipped(where):
    """Also the last reward alone, which makes every target infinite and none NaN: the critic's bins would clip it."""
    case, _ = case_of("algo.epochs=3")
    algorithm, batch = case.algorithm(context=case.context(skips=True)), case.batch(0, 40)
    batch |= {"discount": torch.full((40,), 0.9), "cut": torch.zeros(40, dtype=torch.bool)}
    before, reward = algorithm.params.flat.clone(), batch["reward"].clone()
    reward[where] = math.inf
    update = algorithm.learn({**batch, "reward": reward}, Counts())
    assert (update.steps, update.skipped) == (0, 3)
    assert torch.equal(algorithm.params.flat, before)


def test_actor_and_critic_are_clipped_apart():
    _, algorithm = case_of("optimizer.max_norm=0.3")
    assert algorithm.optimizer.limits == {"actor": 0.3, "critic": 0.3}


@pytest.mark.parametrize("options", [("algo.atoms=1",), ("algo.v_min=10",)])
def test_an_empty_support_is_refused(options):
    with pytest.raises(UsageError, match=r"algo.atoms=.* has to be at least 2, and algo.v_min=.* below"):
        Case("reppo", *options)


@pytest.mark.parametrize("look", LOOKS)
def test_the_policy_has_the_greedy_actions_of_the_actor_and_everything_learns(look):
    learner = Learner("reppo", "box", *LOOKS[look], epochs=2, minibatch_size=12, seq_len=4)
    algorithm, before = learner.algorithm(), {}
    for name, module in algorithm.params.modules.items():
        before |= {f"{name}.{key}": value.clone() for key, value in module.named_parameters()}
    assert algorithm.learn(learner.batch(algorithm), Counts()).steps > 2
    for name, module in algorithm.params.modules.items():
        assert not any(torch.equal(before[f"{name}.{key}"], value) for key, value in module.named_parameters())
    policy, obs = learner.policy(algorithm), learner.obs(6, np.random.default_rng(0))
    with torch.no_grad():
        features = algorithm.encoder.features(mapped(obs, torch.from_numpy))
        if learner.has_memory:
            features, _ = algorithm.encoder.memory.step(features, torch.zeros(6, algorithm.encoder.memory.state_size))
        expected = algorithm.nets.actor(features)[:, :2].tanh()
    greedy = policy.greedy(obs, PreviousStep.none(learner.spec, 6))
    np.testing.assert_allclose(greedy, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("look", ["image", "memory", "tree-memory"])
def test_only_the_critic_trains_the_encoder(look):
    """The encoder's gradient is that of the critic's loss alone."""
    learner = Learner("reppo", "box", *LOOKS[look], prediction_coef=0.0, epochs=1, minibatch_size=None, seq_len=4)
    algorithm = learner.algorithm()
    batch, grads = learner.batch(algorithm), []
    for is_whole in (True, False):
        algorithm = learner.algorithm()
        if not is_whole:
            loss, none = algorithm.loss, {"none": torch.ones(1)}
            algorithm.minibatches.loss = lambda *args, loss=loss, none=none: (loss(*args)[1]["critic_loss"], none)
        algorithm.learn(dict(batch), Counts())
        assert algorithm.params.grad.isfinite().all()
        grads.append({name: algorithm.params[name].grad.clone() for name in algorithm.encoder.parts})
        assert algorithm.params["actor"].grad.any() == is_whole
    for name, grad in grads[0].items():
        assert grad.any()
        torch.testing.assert_close(grad, grads[1][name])


def test_dropout_masks_the_hidden_layers_of_the_critic():
    case, algorithm = case_of("network.dropout=0.5")
    masks = algorithm.minibatches.mlp.masks(torch.rand(NUM, 8 + 3 * WIDTH), 0.5)
    assert [tuple(mask.shape[1:]) for mask in masks] == [(NUM, 8), (NUM, WIDTH), (NUM, WIDTH), (NUM, WIDTH)]
    obs, action = torch.randn(NUM, 3), torch.rand(NUM, 1)
    with torch.no_grad():
        dropped, plain = algorithm.nets.critic(obs, action, masks), algorithm.nets.critic(obs, action)
        kept = algorithm.nets.critic(obs, action, [torch.ones_like(mask) for mask in masks])
    for one, two, three in zip(dropped, plain, kept, strict=True):
        assert not torch.equal(one, two)
        assert torch.equal(two, three)
    ones = [torch.ones_like(mask) for mask in masks]
    for i, changes in enumerate([(True, True, True), (True, True, True), (True, False, False), (False, False, True)]):
        with torch.no_grad():
            found = algorithm.nets.critic(obs, action, [0 * one if i == j else one for j, one in enumerate(ones)])
        assert [not torch.equal(a, b) for a, b in zip(found, plain, strict=True)] == [*changes], i
    assert case.learn(algorithm, 0, 2)[-1].steps > 0


@pytest.mark.slow
def test_the_contract_with_dropout():
    small = ("env=Pendulum-v1", "tuned=none", "network.hidden=[8]", "algo.minibatch_size=8", "algo.epochs=1")
    check_algorithm("reppo", *small, "network.dropout=0.1")
