"""The gradients behind images and memories equal those of the losses written out row by row."""

import pytest
import torch
from learners import IMAGE, LOOKS, VECTOR, Learner, Plain, taken, target_encoder
from torch.distributions import Independent, Normal

from drl_cli.algos.base import Counts

SEEN = pytest.mark.parametrize(("obs", "memory"), [(IMAGE, "none"), (VECTOR, "lstm"), (IMAGE, "gru"), LOOKS["tree"]])


def differ(algorithm):
    """Have the targets differ from what they are copies of."""
    for target in algorithm.params.targets.values():
        noise = torch.randn(target.flat.shape, generator=torch.Generator().manual_seed(7))
        target.flat.add_(0.1 * noise)


def seen(plain, batch, burn_in):
    """Features of the learned rows and of their next observations; the rows' other columns; which rows they are."""
    columns = {key: batch[key] for key in ("action", "reward", "discount", "weight") if key in batch}
    if plain.memory is None:
        with torch.no_grad():
            then = plain.features(batch["next_obs"])
        return plain.features(batch["obs"]), then, columns, torch.ones(len(batch["reward"]), dtype=torch.bool)
    mask, now, then = batch["valid"], [], []
    for b in range(len(mask)):
        begin, end = int(mask[b].int().argmax()), int(mask[b].nonzero().max()) + 1
        obs, next_obs = (taken(taken(batch[key], b), slice(begin, end)) for key in ("obs", "next_obs"))
        features = plain.unrolled(obs, next_obs, batch["state"][b : b + 1], max(0, burn_in - begin))
        now.append(features[0])
        then.append(features[1])
    real = mask[:, burn_in:]
    weight = columns.pop("weight", None)
    rows = {key: column[:, burn_in:][real] for key, column in columns.items()}
    if weight is not None:
        rows["weight"] = weight.unsqueeze(1).expand(real.shape)[real]
    return torch.cat(now), torch.cat(then).detach(), rows, real.flatten()


def check(algorithm, plain, parts):
    for part in parts:
        grad = algorithm.params[part].grad
        assert grad.any()
        torch.testing.assert_close(
            grad, plain.grads(part), rtol=1e-3, atol=1e-6, msg=lambda text, p=part: f"{p}: {text}"
        )


def rated(networks, x, action):
    return networks.head("critic", torch.cat([x, action], -1)).squeeze(-1)


def noise_of(algorithm, real, size):
    """Return the normal noise that the algorithm will draw in its next update, for the rows that are no padding."""
    generator = torch.Generator()
    generator.set_state(algorithm.state()["generator.noise"])
    return torch.randn(len(real), size, generator=generator)[real]


@SEEN
@pytest.mark.parametrize("weighted", [False, True])
def test_sac(obs, memory, weighted):
    """The encoder learns from the critics alone; the actor learns with the critics before their step."""
    learner = Learner("sac", "box", obs, memory, initial_alpha=0.5, lr=1e-2)
    algorithm = learner.algorithm()
    differ(algorithm)
    batch = learner.batch(algorithm) | ({"weight": torch.linspace(0.2, 1.0, 8)} if weighted else {})
    params = algorithm.params
    plain = Plain(algorithm.encoder, actor=params.modules["actor"], critic=params.modules["critic"])
    target = Plain(target_encoder(algorithm), critic=params.targets["critic"].module)
    features, next_features, rows, real = seen(plain, batch, learner.context.burn_in)
    now_noise, next_noise = noise_of(algorithm, real, 4).chunk(2, -1)

    def sample(x, noise):
        mean, log_std = plain.head("actor", x)[0].chunk(2, -1)
        u = mean + log_std.exp() * noise
        log_prob = Independent(Normal(mean, log_std.exp()), 1).log_prob(u)
        return torch.tanh(u), log_prob - (1 - torch.tanh(u) ** 2).log().sum(-1)

    with torch.no_grad():
        next_action, next_log_prob = sample(next_features, next_noise)
        next_q = rated(target, seen(target, batch, learner.context.burn_in)[1], next_action).amin(0)
        y = rows["reward"] + rows["discount"] * (next_q - 0.5 * next_log_prob)
    error = rated(plain, features, rows["action"]) - y
    (rows.get("weight", torch.ones(len(y))) * error.square()).mean(-1).sum().backward()
    before = Plain(algorithm.encoder, critic=params.modules["critic"])
    priorities = algorithm.learn(batch, Counts()).priorities.flatten()[real]
    torch.testing.assert_close(priorities, error.detach().abs().mean(0), rtol=1e-3, atol=1e-5)
    action, log_prob = sample(features.detach(), now_noise)
    (0.5 * log_prob - rated(before, features.detach(), action).amin(0)).mean().backward()
    check(algorithm, plain, ("actor", "critic", *algorithm.encoder.parts))
    alpha = -(log_prob.detach().mean() - 2.0)  # the target entropy is minus the number of dimensions
    torch.testing.assert_close(params["log_alpha"].grad, alpha.reshape(1), rtol=1e-4, atol=1e-5)


@SEEN
@pytest.mark.parametrize("kind", ["box", "discrete", "multidiscrete"])
def test_ppo(obs, memory, kind):
    """Actor and critic both teach the encoder."""
    options = {"epochs": 1, "minibatch_size": 1000, "seq_len": 4, "entropy_coef": 0.02, "normalize_advantage": False}
    learner = Learner("ppo", kind, obs, memory, **options)
    algorithm, config = learner.algorithm(), learner.config
    batch = learner.batch(algorithm)
    batch["log_prob"] += torch.linspace(-0.5, 0.5, 30)  # some ratios lie beyond the clip
    plain = Plain(algorithm.encoder, actor=algorithm.nets.actor, critic=algorithm.nets.critic)
    log_std = algorithm.params["log_std"].flat.clone().requires_grad_()
    if memory == "none":
        features, next_features, *_ = seen(plain, batch, 0)
    else:
        chunks, begin = [], 0
        for i in range(30):
            if batch["cut"][i] or i - begin == config.seq_len - 1:
                chunks.append(slice(begin, i + 1))
                begin = i + 1
        pieces = [
            plain.unrolled(taken(batch["obs"], c), taken(batch["next_obs"], c), batch["state"][c.start : c.start + 1])
            for c in chunks
        ]
        features, next_features = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    value = plain.head("critic", features)[0, :, 0]
    with torch.no_grad():
        delta = batch["reward"] + batch["discount"] * plain.head("critic", next_features)[0, :, 0] - value
        advantage = torch.zeros(31)
        for i in reversed(range(30)):
            later = 0.0 if batch["cut"][i] else batch["discount"][i] * config.gae_lambda * advantage[i + 1]
            advantage[i] = delta[i] + later
        advantage = advantage[:-1]
        target = advantage + value
    out, action = plain.head("actor", features)[0], batch["action"]
    if kind == "box":
        distribution = Independent(Normal(out, log_std.exp()), 1)
        log_prob, entropy = distribution.log_prob(action), distribution.entropy()
    else:
        parts = [torch.distributions.Categorical(logits=x) for x in out.split(learner.action.choices, -1)]
        log_prob = sum(p.log_prob(a) for p, a in zip(parts, action.reshape(30, -1).unbind(-1), strict=True))
        entropy = sum(p.entropy() for p in parts)
    ratio = (log_prob - batch["log_prob"]).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
    value_loss = config.value_coef * 0.5 * (value - target).square().mean()
    (value_loss - surrogate.mean() - config.entropy_coef * entropy.mean()).backward()
    assert algorithm.learn(batch, Counts()).steps == 1
    check(algorithm, plain, ("actor", "critic", *algorithm.encoder.parts))
    if kind == "box":
        torch.testing.assert_close(algorithm.params["log_std"].grad, log_std.grad, rtol=1e-4, atol=1e-6)
