import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from drl_cli import api as drl
from drl_cli.envs.actions import ActionMap
from drl_cli.losses.either import choices

RNG = np.random.default_rng(0)
LOGITS, OTHER = (RNG.standard_normal((6, 5)).astype(np.float32) for _ in range(2))
MEAN, LOG_STD, MEAN_2, LOG_STD_2 = (0.7 * RNG.standard_normal((6, 3)).astype(np.float32) for _ in range(4))
CHOICES = (3, 2)
MAKERS = {
    "categorical": lambda kind: (drl.Categorical(kind(LOGITS)), drl.Categorical(kind(OTHER))),
    "multi": lambda kind: (drl.MultiCategorical(kind(LOGITS), CHOICES), drl.MultiCategorical(kind(OTHER), CHOICES)),
    "gaussian": lambda kind: (drl.Gaussian(kind(MEAN), kind(LOG_STD)), drl.Gaussian(kind(MEAN_2), kind(LOG_STD_2))),
    "one std": lambda kind: (drl.Gaussian(kind(MEAN), kind(LOG_STD[0])), drl.Gaussian(kind(MEAN_2), kind(LOG_STD_2))),
    "tanh": lambda kind: (drl.TanhGaussian(kind(MEAN), kind(LOG_STD)), drl.TanhGaussian(kind(MEAN_2), kind(LOG_STD_2))),
}


def noise(name):
    rng = np.random.default_rng(1)
    return (rng.random((6, 5)) if name in ("categorical", "multi") else rng.standard_normal((6, 3))).astype(np.float32)


@pytest.mark.parametrize("name", MAKERS)
def test_torch_and_numpy_give_the_same_numbers(name):
    (array, array_2), (tensor, tensor_2) = MAKERS[name](np.asarray), MAKERS[name](torch.from_numpy)
    action, log_prob = array.sample_log_prob(noise(name))
    same, same_log_prob = tensor.sample_log_prob(torch.from_numpy(noise(name)))
    assert isinstance(action, np.ndarray)
    assert log_prob.shape == (6,)
    pairs = [
        *[(action, same), (log_prob, same_log_prob), (array.mode, tensor.mode)],
        (array.kl(array_2), tensor.kl(tensor_2)),
    ]
    pairs += [(array.log_prob(action), tensor.log_prob(same)), (array.log_prob(action), log_prob)]
    if name != "tanh":
        pairs.append((array.entropy(), tensor.entropy()))
    for one, two in pairs:
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(array.kl(array), 0, atol=1e-6)
    np.testing.assert_allclose(
        array.sample(np.random.default_rng(3)), tensor.sample(np.random.default_rng(3)).numpy(), rtol=1e-5, atol=1e-6
    )
    drawn = tensor.sample(torch.Generator().manual_seed(0))
    assert torch.equal(drawn, tensor.sample(torch.Generator().manual_seed(0)))
    assert not torch.equal(drawn, tensor.sample(torch.Generator().manual_seed(1)))


def test_against_the_distributions_of_torch():
    kinds = torch.distributions
    mean, log_std, mean_2, log_std_2 = (torch.from_numpy(x) for x in (MEAN, LOG_STD, MEAN_2, LOG_STD_2))
    one, two = (kinds.Independent(kinds.Normal(m, s.exp()), 1) for m, s in ((mean, log_std), (mean_2, log_std_2)))
    ours, ours_2 = MAKERS["gaussian"](torch.from_numpy)
    torch.testing.assert_close(ours.log_prob(mean_2), one.log_prob(mean_2))
    torch.testing.assert_close(ours.entropy(), one.entropy())
    torch.testing.assert_close(ours.kl(ours_2), kinds.kl_divergence(one, two))
    squashed = kinds.TransformedDistribution(one, kinds.TanhTransform())
    ours, ours_2 = MAKERS["tanh"](torch.from_numpy)
    torch.testing.assert_close(ours.log_prob(mean_2.tanh()), squashed.log_prob(mean_2.tanh()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.kl(ours_2), kinds.kl_divergence(one, two))
    one, two = (kinds.Categorical(logits=torch.from_numpy(x)) for x in (LOGITS, OTHER))
    ours, ours_2 = MAKERS["categorical"](torch.from_numpy)
    action = torch.tensor([0, 1, 2, 3, 4, 0])
    torch.testing.assert_close(ours.log_prob(action), one.log_prob(action))
    torch.testing.assert_close(ours.entropy(), one.entropy())
    torch.testing.assert_close(ours.kl(ours_2), kinds.kl_divergence(one, two))


@pytest.mark.parametrize("choices", [(9,), (4, 2, 3)])
def test_choices_have_the_gradients_of_torch(choices):
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(6, 9, generator=rng)).requires_grad_()
    action, weight = torch.arange(6 * len(choices)).view(6, -1) % 2, torch.randn(2, 6, generator=rng)
    parts = [torch.distributions.Categorical(logits=part) for part in torch.split(logits, choices, -1)]
    log_prob = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    entropy = sum(part.entropy() for part in parts)
    (expected,) = torch.autograd.grad((weight[0] * log_prob + weight[1] * entropy).sum(), logits)
    ours = drl.MultiCategorical(logits, choices) if len(choices) > 1 else drl.Categorical(logits)
    action = action if len(choices) > 1 else action[:, 0]
    torch.testing.assert_close(ours.log_prob(action), log_prob)
    torch.testing.assert_close(ours.entropy(), entropy)
    loss = (weight[0] * ours.log_prob(action) + weight[1] * ours.entropy_at(action)).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("log_std", [LOG_STD, LOG_STD[0]])
def test_the_parts_of_a_divergence_change_only_the_mean_or_only_the_deviation(kind, log_std):
    for one, two in ((log_std, LOG_STD_2), (LOG_STD_2, log_std), (log_std, log_std)):
        old, new = drl.Gaussian(kind(MEAN), kind(one)), drl.Gaussian(kind(MEAN_2), kind(two))
        by_mean, by_std = old.kl_parts(new)
        np.testing.assert_allclose(by_mean, old.kl(drl.Gaussian(kind(MEAN_2), kind(one))), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(by_std, old.kl(drl.Gaussian(kind(MEAN), kind(two))), rtol=1e-5, atol=1e-6)
        squashed = (drl.TanhGaussian(kind(mean), kind(std)) for mean, std in ((MEAN, one), (MEAN_2, two)))
        np.testing.assert_allclose(next(squashed).kl_parts(next(squashed))[0], by_mean)
        assert len(by_std) == len(old.entropy()) == 6
    (same,) = drl.Categorical(kind(LOGITS)).kl_parts(drl.Categorical(kind(OTHER)))
    np.testing.assert_allclose(same, drl.Categorical(kind(LOGITS)).kl(drl.Categorical(kind(OTHER))))


def test_the_entropy_of_squashed_actions_is_estimated_with_its_gradient():
    """With u = mean + std * z and a fixed z, the estimate is the entropy of u plus log(1 - tanh(u)^2)."""
    mean, log_std = (torch.from_numpy(x).double().requires_grad_() for x in (MEAN, LOG_STD))
    z = torch.from_numpy(noise("tanh")).double()
    u, normal = mean + log_std.exp() * z, torch.distributions.Normal(mean, log_std.exp())
    expected = normal.entropy().sum(-1) + (1 - u.tanh().square()).log().sum(-1)
    ours = drl.TanhGaussian(mean, log_std).entropy_at(u.tanh().detach())
    torch.testing.assert_close(ours, expected)
    for one, two in zip(*(torch.autograd.grad(x.sum(), (mean, log_std)) for x in (ours, expected)), strict=True):
        torch.testing.assert_close(one, two)
    array = drl.TanhGaussian(MEAN, LOG_STD)
    np.testing.assert_allclose(array.entropy_at(u.tanh().detach().float().numpy()), ours.detach(), rtol=1e-3, atol=1e-4)


def test_literal_numbers():
    half = drl.Categorical(np.log(np.array([[0.5, 0.25, 0.25]])))
    assert half.entropy()[0] == pytest.approx(1.5 * math.log(2))
    assert half.log_prob(np.array([1]))[0] == pytest.approx(-math.log(4))
    assert half.kl(drl.Categorical(np.zeros((1, 3))))[0] == pytest.approx(math.log(3) - 1.5 * math.log(2))
    two = drl.MultiCategorical(np.log(np.array([[0.5, 0.5, 0.2, 0.8]])), (2, 2))
    assert two.log_prob(np.array([[0, 1]]))[0] == pytest.approx(math.log(0.4))
    assert two.mode.tolist() in ([[0, 1]], [[1, 1]])
    unit = drl.Gaussian(np.zeros((1, 2)), np.zeros(2))
    assert unit.log_prob(np.array([[1.0, 0.0]]))[0] == pytest.approx(-0.5 - math.log(2 * math.pi))
    assert unit.entropy()[0] == pytest.approx(1 + math.log(2 * math.pi))
    assert unit.kl(drl.Gaussian(np.ones((1, 2)), np.zeros(2)))[0] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("u", [20.0, -20.0, 60.0, -60.0])
def test_the_correction_of_tanh_is_exact_where_tanh_rounds_to_one(kind, u):
    mean = np.full((1, 1), u, np.float32)
    action, log_prob = drl.TanhGaussian(kind(mean), kind(0 * mean)).sample_log_prob(kind(0 * mean))
    assert float(action[0, 0]) == math.copysign(1.0, u)
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - abs(u))  # log(1 - tanh^2 20) = 2 (log 2 - 20) + 1e-17
    assert float(log_prob[0]) == pytest.approx(expected, rel=1e-6)
    assert np.isfinite(np.asarray(drl.TanhGaussian(kind(mean), kind(0 * mean)).log_prob(action))).all()


def test_gradients_flow_from_a_sample_and_stay_finite():
    mean = torch.tensor([[20.0, 0.5, -20.0]], requires_grad=True)
    log_std = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    action, log_prob = drl.TanhGaussian(mean, log_std).sample_log_prob(torch.tensor([[0.3, -0.2, 0.1]]))
    (action.sum() + log_prob.sum()).backward()
    assert torch.isfinite(mean.grad).all()
    assert mean.grad[0, 0] == pytest.approx(2.0, abs=1e-5)  # d log_prob / du = 2 tanh(u)
    assert (log_std.grad != 0).all()


def test_samples_have_the_probabilities_of_the_softmax_and_of_legal_choices():
    logits = np.tile(np.log(np.array([[1, 2, 5, 3, 1]], np.float32)), (40_000, 1))
    mask = np.array([[True, True, False, True, True]]).repeat(40_000, 0)
    for random in (np.random.default_rng(0), torch.Generator().manual_seed(0)):
        kind = np.asarray if isinstance(random, np.random.Generator) else torch.from_numpy
        share = np.bincount(np.asarray(drl.Categorical(kind(logits)).sample(random)), minlength=5) / 40_000
        np.testing.assert_allclose(share, np.array([1, 2, 5, 3, 1]) / 12, atol=0.01)
        legal = drl.Categorical(kind(logits), kind(mask))
        share = np.bincount(np.asarray(legal.sample(random)), minlength=5) / 40_000
        np.testing.assert_allclose(share, np.array([1, 2, 0, 3, 1]) / 7, atol=0.01)
        assert share[2] == 0
        probs = np.array([1, 2, 3, 1]) / 7
        assert float(legal.entropy()[0]) == pytest.approx(-(probs * np.log(probs)).sum(), rel=1e-4)
        several = np.asarray(drl.MultiCategorical(kind(logits), (3, 2), kind(mask)).sample(random))
        np.testing.assert_allclose(np.bincount(several[:, 0], minlength=3) / 40_000, np.array([1, 2, 0]) / 3, atol=0.01)
        np.testing.assert_allclose(np.bincount(several[:, 1]) / 40_000, np.array([3, 1]) / 4, atol=0.01)


def test_the_smallest_and_the_largest_noise_give_a_sample():
    logits = np.zeros((2, 2), np.float32)
    uniform = np.array([[0.0, 1 - 2.0**-24], [1 - 2.0**-24, 0.0]], np.float32)
    with np.errstate(all="raise"):
        assert drl.Categorical(logits).sample(uniform).tolist() == [0, 1]  # the smallest noise is the largest Gumbel


def test_bounds_of_the_environment_are_reached_in_each_dimension():
    convert = ActionMap(spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([6.0, 10.0], np.float32))).convert
    mean = np.array([[30.0, -30.0], [0.0, 0.0]], np.float32)
    assert convert(drl.TanhGaussian(mean, 0 * mean).mode).tolist() == [[6.0, 0.0], [2.0, 5.0]]
    assert convert(drl.Gaussian(mean, 0 * mean).mode).tolist() == [[6.0, 0.0], [2.0, 5.0]]


def test_the_entropy_of_a_squashed_gaussian_is_refused():
    with pytest.raises(ValueError, match="sample_log_prob"):
        drl.TanhGaussian(MEAN, LOG_STD).entropy()


def mixture(kind):
    """Return two Gaussians, or one, with their means and logits."""
    components = 2 if kind == "two" else 1
    out = RNG.standard_normal((6, 3 * components + (components if components > 1 else 0))).astype(np.float32)
    return out, 0.5 * RNG.standard_normal((components, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", ["one", "two"])
def test_a_mixture_equals_that_of_torch(kind):
    out, log_std = mixture(kind)
    flat, num = log_std.ravel(), len(log_std)
    array, tensor = (drl.GaussianMixture(kind(out), kind(flat), num) for kind in (np.asarray, torch.from_numpy))
    means = torch.from_numpy(out[:, : log_std.size]).tanh().view(6, -1, 3)
    logits = torch.from_numpy(out[:, log_std.size :]) if kind == "two" else torch.zeros(6, 1)
    kinds = torch.distributions
    parts = kinds.Independent(kinds.Normal(means, torch.from_numpy(log_std).exp().expand_as(means)), 1)
    expected = kinds.MixtureSameFamily(kinds.Categorical(logits=logits), parts)
    action = np.tanh(MEAN)
    for found in (torch.from_numpy(array.log_prob(action)), tensor.log_prob(torch.from_numpy(action))):
        torch.testing.assert_close(found, expected.log_prob(torch.from_numpy(action)), rtol=1e-4, atol=1e-4)
    best = means[torch.arange(6), logits.argmax(1)]
    for found in (torch.from_numpy(array.mode), tensor.mode):
        torch.testing.assert_close(found, best)
    rows = drl.GaussianMixture(np.repeat(out[:1], 4000, 0), flat - 2.0, num)
    drawn, again = (one.sample(np.random.default_rng(0)) for one in (rows, rows))
    np.testing.assert_array_equal(drawn, again)
    np.testing.assert_allclose(drawn.mean(0), (logits[0].softmax(0)[:, None] * means[0]).sum(0), atol=0.05)
    assert np.abs(drawn).max() <= 1
    assert (tensor.sample(torch.Generator().manual_seed(0)).abs() <= 1).all()


def test_a_gaussian_that_clips_has_the_density_of_the_other():
    wide = drl.Gaussian(MEAN, 2.0 + 0 * LOG_STD, clips=True)
    assert np.abs(wide.sample(np.random.default_rng(0))).max() == 1.0
    np.testing.assert_array_equal(wide.log_prob(MEAN_2), drl.Gaussian(MEAN, 2.0 + 0 * LOG_STD).log_prob(MEAN_2))


@pytest.mark.parametrize("method", ["log_prob", "entropy", "kl"])
def test_a_deterministic_policy_has_no_density(method):
    with pytest.raises(ValueError, match="Deterministic has no"):
        getattr(drl.Deterministic(MEAN), method)(*[MEAN] * (method != "entropy"))


def test_numpy_needs_no_torch():
    code = (
        "import sys, numpy as np, drl_cli.api as drl; rng = np.random.default_rng(0); x = np.zeros((2, 4), np.float32);"
        "all_ = drl.Categorical(x), drl.MultiCategorical(x, (2, 2)), drl.TanhGaussian(x, x);"
        "drl.GaussianMixture(x, x[0], 1).sample(rng);"
        "[one.sample_log_prob(rng) for one in all_];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("temperature", [0.0, 0.5, np.linspace(0.1, 2.0, 400)])
@pytest.mark.parametrize("epsilon", [0.3, np.linspace(0.0, 1.0, 400)])
@pytest.mark.parametrize("is_masked", [False, True])
def test_epsilon_greedy_samples_the_same_in_torch_and_numpy(epsilon, temperature, is_masked):
    """Also with one epsilon and one temperature for each environment (worker.exploration=env_ladder)."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((400, 3), np.float32)
    mask = np.repeat([[True, False, True]], 400, 0) if is_masked else None
    in_numpy = drl.EpsilonGreedy(values, epsilon, mask, temperature)
    tensors = (torch.from_numpy(values), epsilon, None if mask is None else torch.from_numpy(mask), temperature)
    in_torch = drl.EpsilonGreedy(*tensors)
    drawn = in_numpy.sample(np.random.default_rng(1))
    assert np.array_equal(in_torch.sample(np.random.default_rng(1)).numpy(), drawn)
    assert is_masked != (drawn == 1).any()
    explored = drawn != in_numpy.mode
    assert 0.1 < explored.mean() < 0.7
    if isinstance(epsilon, np.ndarray) and isinstance(temperature, float) and not temperature:
        assert explored[:200].sum() < explored[200:].sum()


def test_one_random_integer_is_the_number_that_numpy_draws_for_an_array():
    """And the generator goes on equally: `choices` has a faster way for one row."""
    own, other = np.random.default_rng(3), np.random.default_rng(3)
    for rows in (1, 1, 3, 1, 2, 1):
        assert np.array_equal(choices(own, 5, rows), other.integers(5, size=rows))
        assert own.random() == other.random()
