import dataclasses
import math

import pytest
import torch
from continuous import NETWORK, SPEC, gradient, make, policy_of
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import mrq
from drl_cli.algos.off_policy.mrq import ScaledCritics
from drl_cli.errors import Refused
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec

ROWS, STEPS, WIDTH, BINS, SCALE, OLD_SCALE = 32, 5, 12, 9, 2.0, 3.0
DISCRETE = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 3, "Discrete(3)"))
WEIGHTS = {"dynamics_weight": 0.7, "reward_weight": 0.4, "termination_weight": 0.3, "pre_activation_weight": 0.2}
NORMAL = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
UNIFORM = torch.rand(ROWS, 6, generator=torch.Generator().manual_seed(2))


def windows(spec):
    """A batch of windows: some end by a termination or a truncation, and the rest is padding."""
    rng = torch.Generator().manual_seed(0)
    length = torch.randint(1, STEPS + 1, (ROWS,), generator=rng)
    step = torch.arange(STEPS)
    valid = step < length[:, None]
    terminated = (step == length[:, None] - 1) & (torch.rand(ROWS, 1, generator=rng) < 0.5)
    action = torch.rand(ROWS, STEPS, 3, generator=rng) * 2 - 1
    return {
        "obs": torch.randn(ROWS, STEPS, 5, generator=rng),
        "action": action if spec is SPEC else action.argmax(-1),
        "reward": 3 * torch.randn(ROWS, STEPS, generator=rng),
        "next_obs": torch.randn(ROWS, STEPS, 5, generator=rng),
        "discount": torch.where(terminated, 0.0, 0.99),
        "terminated": terminated,
        "truncated": torch.zeros(ROWS, STEPS, dtype=torch.bool),
        "valid": valid,
        "weight": torch.rand(ROWS, generator=rng) + 0.5,
    }


class Reference:
    """The networks in float64, from flat parameters."""

    def __init__(self, parts):
        self.f = sequential(parts["state"].flat, (5, 16, 12, WIDTH), "tanh")
        pair = parts["pair"].flat
        self.a = sequential(pair[: 4 * 6], (3, 6), "tanh")
        self.g = sequential(pair[4 * 6 :], (WIDTH + 6, 16, 12, WIDTH), "tanh")
        self.pi = sequential(parts["actor"].flat, (WIDTH, 16, 12, 3), "relu")
        self.q = [sequential(one, (WIDTH, 16, 12, 12, 1), "tanh") for one in parts["value"].flat.chunk(2)]

    def state(self, obs):
        out = self.f(obs.double())
        centred = out - out.mean(-1, keepdim=True)
        return (centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()).tanh()

    def pair(self, zs, action):
        return self.g(torch.cat([zs, self.a(action).tanh()], -1))

    def values(self, zsa):
        return torch.stack([q(zsa)[:, 0] for q in self.q])


def two_hot(value):
    """The target distribution of one reward, dense."""
    bins = [math.copysign(math.exp(abs(x)) - 1, x) for x in (-10 + 20 * i / (BINS - 1) for i in range(BINS))]
    probs = torch.zeros(BINS, dtype=torch.float64)
    below = max(i for i in range(BINS - 1) if bins[i] <= value)
    probs[below + 1] = (value - bins[below]) / (bins[below + 1] - bins[below])
    probs[below] = 1 - probs[below + 1]
    return probs


def soft(logits, uniform):
    return ((logits - (-uniform.double().log()).log()) / 10).softmax(-1)


def contrast(predicted, goal, rows, temperature):
    """The InfoNCE losses of one step of windows; the others of this step are `rows`."""
    unit, unit_goal = (each / each.norm(dim=1, keepdim=True) for each in (predicted, goal))
    similarity = (unit[rows] @ unit_goal[rows].T) / temperature
    return similarity.exp().sum(1).log() - similarity.diagonal()


@pytest.mark.parametrize(
    ("spec", "infonce"), [(SPEC, 0.0), (DISCRETE, 0.0), (SPEC, 0.6)], ids=["box", "discrete", "dr_q"]
)
def test_an_update_equals_an_independent_implementation(spec, infonce, known_noise):
    weights = {**WEIGHTS, "infonce_weight": infonce, "infonce_temperature": 0.2}
    algorithm, batch = make(mrq, spec=spec, bins=BINS, **weights), windows(spec)
    params, critics = algorithm.params, algorithm.params.modules["value"]
    critics.scale.fill_(SCALE)
    params.targets["value"].module.scale.fill_(OLD_SCALE)
    new, old = Reference(params), Reference(params.targets)
    model = sequential(params["model"].flat, (WIDTH, 1 + WIDTH + BINS), "tanh")
    action = batch["action"] if spec is SPEC else torch.eye(3)[batch["action"]]
    reward, valid = batch["reward"].double(), batch["valid"]
    encoder_loss, zs = 0, new.state(batch["obs"][:, 0])
    first = zs.detach()
    for t in range(STEPS):
        end, zs, logits = model(new.pair(zs, action[:, t].double())).split((1, WIDTH, BINS), 1)
        goal = old.state(batch["next_obs"][:, t]).detach()
        probs = torch.stack([two_hot(float(r)) for r in reward[:, t]])
        losses = 0.7 * ((zs - goal) ** 2).mean(1) - 0.4 * (probs * logits.log_softmax(1)).sum(1)
        losses = losses + 0.3 * (end[:, 0] - batch["terminated"][:, t].double()) ** 2
        rows = valid[:, t]
        encoder_loss = encoder_loss + losses[rows].sum() / ROWS
        encoder_loss = encoder_loss + infonce * contrast(zs, goal, rows, 0.2).sum() / ROWS
    encoder_loss.backward()
    targets = []
    noise = NORMAL.double() * 0.2 if spec is SPEC else NORMAL.double() * 0.1
    noise = noise.clamp(-0.3, 0.3) if spec is SPEC else noise.clamp(-0.15, 0.15)
    with torch.no_grad():
        zsa = new.pair(first, action[:, 0].double())
        for i in range(ROWS):
            count = min(3, int(valid[i].sum()))
            total = sum(0.99**k * reward[i, k] for k in range(count))
            discount = 0.0 if batch["terminated"][i, :count].any() else 0.99**count
            z = old.state(batch["next_obs"][i, count - 1 : count])
            if spec is SPEC:
                best = (old.pi(z).tanh() + noise[i]).clamp(-1, 1)
            else:
                best = torch.eye(3).double()[(soft(old.pi(z), UNIFORM[i, 3:]) + noise[i]).argmax(1)]
            targets.append((total + discount * OLD_SCALE * old.values(old.pair(z, best)).amin()) / SCALE)
    target, q = torch.stack(targets), new.values(zsa)
    critic_loss = torch.nn.functional.huber_loss(q, target.expand(2, -1))
    critic_loss.backward()
    critic_gradient = gradient(*new.q)
    out = new.pi(first)
    chosen = out.tanh() if spec is SPEC else soft(out, UNIFORM[:, :3])
    actor_loss = 0.2 * (out**2).mean() - new.values(new.pair(first, chosen)).mean()
    pair_gradient, state_gradient = gradient(new.a, new.g), gradient(new.f)
    actor_loss.backward()
    update = algorithm.learn(batch, Counts(1))
    for name, value in {"encoder_loss": encoder_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}.items():
        assert float(update.metrics[name]) == pytest.approx(float(value.detach()), rel=1e-4), name
    expected = {"state": state_gradient, "pair": pair_gradient, "model": gradient(model)}
    expected |= {"value": critic_gradient, "actor": gradient(new.pi)}
    for name, one in expected.items():
        torch.testing.assert_close(params[name].grad.double(), one, rtol=2e-3, atol=1e-5)
    priority = (q - target).abs().amax(0).clamp(min=1).detach()
    torch.testing.assert_close(update.priorities.double(), priority[:, None].expand(-1, STEPS), rtol=1e-4, atol=1e-5)


def test_the_targets_are_copied_and_the_scale_follows_the_rewards(known_noise):
    algorithm, batch = make(mrq, target_period=2), windows(SPEC)
    params, critics = algorithm.params, algorithm.params.modules["value"]
    before = {name: target.flat.clone() for name, target in params.targets.items()}
    algorithm.learn(batch, Counts(1))
    assert float(critics.scale) == 1
    assert all(torch.equal(target.flat, before[name]) for name, target in params.targets.items())
    values = {name: params[name].flat.clone() for name in before}
    other = batch | {"reward": 2 * batch["reward"]}
    algorithm.learn(other, Counts(2))
    assert all(torch.equal(target.flat, values[name]) for name, target in params.targets.items())
    torch.testing.assert_close(critics.scale[0], 1.5 * batch["reward"][:, 0].abs().mean())
    assert float(params.targets["value"].module.scale) == 1  # the scale under which its values were learned
    algorithm.learn(batch | {"reward": 0 * batch["reward"]}, Counts(3))
    algorithm.learn(batch | {"reward": 0 * batch["reward"]}, Counts(4))
    torch.testing.assert_close(critics.scale[0], 1.5 * batch["reward"][:, 0].abs().mean())  # no rewards: as before


def test_the_scale_stays_without_batches_and_without_rewards():
    critics, scales = ScaledCritics(NETWORK), []
    critics.scale.fill_(SCALE)
    for rewards in ([], [0.0, 0.0], [3.0, 5.0], []):
        for reward in rewards:
            critics.observe(torch.tensor(reward))
        critics.rescale()
        scales.append(float(critics.scale))
    assert scales == [SCALE, SCALE, 4.0, 4.0]


@pytest.fixture
def known_noise(monkeypatch):
    monkeypatch.setattr("drl_cli.optim.context.Context.randn", lambda self, rows, size, _: NORMAL[:rows, :size])
    monkeypatch.setattr("drl_cli.optim.context.Context.rand", lambda self, rows, size, _: UNIFORM[:rows, :size])


def test_exploration_has_the_noise_of_its_kind_of_actions():
    obs, policy = torch.zeros(4000, 5).numpy(), policy_of(mrq, make(mrq))
    error = policy.act(obs)["action"] - policy.greedy(obs)
    assert error[abs(error) < 0.5].std() == pytest.approx(0.2, rel=0.1)
    discrete = policy_of(mrq, make(mrq, spec=DISCRETE), spec=DISCRETE)
    assert (len(set(discrete.act(obs)["action"].tolist())), len(set(discrete.greedy(obs).tolist()))) == (3, 1)


@pytest.mark.parametrize("options", [{}, {"activation": "elu", "layer_norm": True}], ids=["tanh", "elu"])
def test_the_policy_has_the_networks_of_the_trainer(options):
    network, obs = dataclasses.replace(NETWORK, **options), torch.randn(50, 5)
    algorithm = make(mrq, network=network)
    modules = algorithm.params.modules
    expected = modules["actor"](modules["state"](obs)).tanh().detach()
    action = policy_of(mrq, algorithm, network=network).greedy(obs.numpy())
    torch.testing.assert_close(torch.from_numpy(action), expected, rtol=1e-4, atol=1e-5)


def test_forbidden_actions_are_never_chosen():
    spec = EnvSpec("x", {"x": Column((5,), "float32"), "action_mask": Column((3,), "bool")}, DISCRETE.action)
    obs = {"x": torch.randn(500, 5).numpy(), "action_mask": torch.tensor([False, True, True]).expand(500, 3).numpy()}
    policy = policy_of(mrq, make(mrq, spec=spec), spec=spec)
    for action in (policy.act(obs)["action"], policy.greedy(obs), policy.random(obs)["action"]):
        assert set(action.tolist()) <= {1, 2}


def test_forbidden_actions_are_not_learned_from(known_noise):
    """A very high output of the actor for a forbidden action changes neither the targets nor the actor's loss."""
    spec = EnvSpec("x", {"x": Column((5,), "float32"), "action_mask": Column((3,), "bool")}, DISCRETE.action)
    batch, mask, found = windows(DISCRETE), torch.tensor([False, True, True]).expand(ROWS, STEPS, 3), []
    batch |= {name: {"x": batch[name], "action_mask": mask} for name in ("obs", "next_obs")}
    for bias in (0.0, 1e4):
        algorithm = make(mrq, spec=spec, pre_activation_weight=0.0)
        for part in (algorithm.params["actor"], algorithm.params.targets["actor"]):
            part.flat[-3] = bias  # of the first action
        update = algorithm.learn(batch, Counts(1))
        found.append((update.priorities, update.metrics["actor_loss"]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("options", "network", "says"),
    [
        ({"n_step": 3}, {}, "value_horizon=3"),
        ({}, {"hidden": ()}, "hidden layer"),
        ({}, {"memory": "gru"}, "would learn from single steps"),
    ],
)
def test_what_it_lacks_is_refused(options, network, says):
    config = make(mrq, **options).config
    with pytest.raises(Refused, match=says):
        mrq.Policy.check(config, dataclasses.replace(NETWORK, **network), SPEC)


def test_dropout_drops_units_of_the_critics_and_of_their_targets(monkeypatch):
    network = dataclasses.replace(NETWORK, dropout=0.5)
    plain, dropped = (make(mrq, network=each).learn(windows(SPEC), Counts(1)) for each in (NETWORK, network))
    assert float(dropped.metrics["q_mean"]) != float(plain.metrics["q_mean"])
    assert float(dropped.metrics["encoder_loss"]) == float(plain.metrics["encoder_loss"])
    own, calls = mrq.Algorithm.masks, iter([True, False])  # the critics, and then their targets
    monkeypatch.setattr(mrq.Algorithm, "masks", lambda self, *args: own(self, *args) if next(calls) else ())
    target = make(mrq, network=network).learn(windows(SPEC), Counts(1))
    assert float(dropped.metrics["q_mean"]) == float(target.metrics["q_mean"])
    assert float(dropped.metrics["critic_loss"]) != float(target.metrics["critic_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Reach", pytest.param("Choose", marks=pytest.mark.exhaustive)])
def test_the_public_contract_with_transitions(env):
    check_algorithm("mrq", f"env=drl_cli.envs.probes:{env}-v0", "network.hidden=[16,16]", "replay.rows=transitions")
