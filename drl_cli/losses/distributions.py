"""Distributions of actions, for torch and numpy. With torch tensors as parameters, results are torch tensors.

The argument of `sample(random)` is a numpy generator, noise, or, for torch, a torch generator on the CPU. Categorical
distributions need uniform noise, which `context.rand` draws. Gaussians need standard normal noise, which
`context.randn` draws. With noise from the context, two trainers sample the same actions as one trainer with all rows.
Gradients flow through the sample of a Gaussian to its parameters (reparametrisation).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from drl_cli.losses.either import (
    atanh,
    choices,
    clamp,
    exp,
    expand,
    gumbel,
    log_slope,
    log_softmax,
    log_sum_exp,
    normal,
    part_at,
    split,
    stack,
    tanh,
    where,
)
from drl_cli.losses.policy import LOG_2PI, LOG_STD_MAX, LOG_STD_MIN, permitted, tanh_gaussian
from drl_cli.types import ActionSpec
from drl_cli.utils.lazy import torch


class Distribution(ABC):
    """The base class of action distributions. An object has the distributions of the actions in B states."""

    @property
    def scores(self) -> Any:
        """What each choice is worth, `[B, choices]`: logits, or values. `mode` has the best. None for box actions."""
        return None

    @abstractmethod
    def sample(self, random: Any) -> Any:
        """Return random actions. `random` is a generator, or noise in the shape of the logits or of the mean."""

    @property
    @abstractmethod
    def mode(self) -> Any:
        """The actions for evaluations: the most likely discrete actions, or the mean of a Gaussian."""

    def log_prob(self, action: Any) -> Any:
        """Return the log-probability of discrete actions or the log-density of box actions, `[B]`.

        Raise ValueError, as `entropy` and `kl` do, if the class has none, such as Deterministic.
        """
        raise ValueError(f"{type(self).__name__} has no density")

    def entropy(self) -> Any:
        """Return the entropy `[B]`, in nats. Raise ValueError if there is no formula, as for TanhGaussian."""
        raise ValueError(f"{type(self).__name__} has no formula for its entropy")

    def kl(self, other: Any) -> Any:
        """Return the KL divergence KL(self || other) `[B]`, in nats. `other` has the same class."""
        raise ValueError(f"{type(self).__name__} has no formula for its KL divergence")

    def kl_parts(self, other: Any) -> tuple[Any, ...]:
        """Return the KL divergences, `[B]` each, that a trust region bounds separately. Gaussians return two."""
        return (self.kl(other),)

    def entropy_at(self, action: Any) -> Any:
        """Return the entropy `[B]`, in nats. Only TanhGaussian needs `action`, from which it estimates the entropy."""
        return self.entropy()

    def sample_log_prob(self, random: Any) -> tuple[Any, Any]:
        """Return random actions and their log-probabilities `[B]`."""
        action = self.sample(random)
        return action, self.log_prob(action)


class Categorical(Distribution):
    """A categorical distribution over A discrete actions, with logits `[B, A]`. Actions are int64 `[B]`.

    `mask`, bool `[B, A]`, is False for illegal actions, which are never sampled.
    """

    def __init__(self, logits: Any, mask: Any = None) -> None:
        self.logits = permitted(logits, mask)

    @property
    def scores(self) -> Any:
        return self.logits

    @cached_property
    def log_probs(self) -> Any:
        """The log-probabilities `[B, A]` of the actions."""
        return log_softmax(self.logits)

    def sample(self, random: Any) -> Any:
        return (self.logits + gumbel(random, self.logits)).argmax(-1)  # Gumbel-max: a sample of softmax(logits)

    @property
    def mode(self) -> Any:
        return self.logits.argmax(-1)

    def log_prob(self, action: Any) -> Any:
        if isinstance(action, np.ndarray):
            return self.log_probs[np.arange(len(action)), action]
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Any:
        return -(exp(self.log_probs) * self.log_probs).sum(-1)

    def kl(self, other: "Categorical") -> Any:
        return (exp(self.log_probs) * (self.log_probs - other.log_probs)).sum(-1)


class MultiCategorical(Distribution):
    """k independent categorical distributions, for MultiDiscrete actions. Actions are int64 `[B, k]`.

    `choices` has the number of possible values of each of the k components of an action. `logits` `[B, sum(choices)]`
    has the logits of the k distributions, one after another. `mask`, bool in the shape of `logits`, is False for
    illegal values.
    """

    def __init__(self, logits: Any, choices: Sequence[int], mask: Any = None) -> None:
        self.logits = permitted(logits, mask)
        self.choices = tuple(choices)
        self.parts = [Categorical(part) for part in split(self.logits, choices)]

    @property
    def scores(self) -> Any:
        return self.logits

    def sample(self, random: Any) -> Any:
        noisy = split(self.logits + gumbel(random, self.logits), self.choices)  # Gumbel-max, as in Categorical
        return stack([logits.argmax(-1) for logits in noisy])

    @property
    def mode(self) -> Any:
        return stack([part.mode for part in self.parts])

    def log_prob(self, action: Any) -> Any:
        return stack([part.log_prob(action[..., i]) for i, part in enumerate(self.parts)]).sum(-1)

    def entropy(self) -> Any:
        return stack([part.entropy() for part in self.parts]).sum(-1)

    def kl(self, other: "MultiCategorical") -> Any:
        pairs = zip(self.parts, other.parts, strict=True)
        return stack([own_part.kl(other_part) for own_part, other_part in pairs]).sum(-1)


class Gaussian(Distribution):
    """Independent normal distributions with `mean` `[B, A]`, and `log_std` `[A]` or `[B, A]`. Actions are `[B, A]`.

    Sampled actions are only clipped to [-1, 1] if `clips` is True, and `log_prob` is the log-density of the unclipped
    action. The environment later clips an action and rescales the result to the bounds of its action space.
    """

    def __init__(self, mean: Any, log_std: Any, *, clips: bool = False) -> None:
        self.mean, self.log_std, self.clips = mean, log_std, clips

    def sample(self, random: Any) -> Any:
        action = self.mean + exp(self.log_std) * normal(random, self.mean)
        return clamp(action, -1.0, 1.0) if self.clips else action

    def sample_log_prob(self, random: Any) -> tuple[Any, Any]:
        noise = normal(random, self.mean)
        return self.mean + exp(self.log_std) * noise, self._log_density(noise)

    @property
    def mode(self) -> Any:
        return self.mean

    def log_prob(self, action: Any) -> Any:
        return self._log_density((action - self.mean) * exp(-self.log_std))

    def _log_density(self, z: Any) -> Any:
        """Return the log-density `[B]` of the action mean + std * z, given z `[B, A]`."""
        return (-0.5 * z * z - self.log_std - 0.5 * LOG_2PI).sum(-1)

    def entropy(self) -> Any:
        return (expand(self.log_std, self.mean) + (0.5 + 0.5 * LOG_2PI)).sum(-1)

    def kl(self, other: "Gaussian") -> Any:
        ratio = exp(self.log_std - other.log_std)
        z = (self.mean - other.mean) * exp(-other.log_std)
        return (other.log_std - self.log_std + 0.5 * (ratio * ratio + z * z - 1.0)).sum(-1)

    def kl_parts(self, other: "Gaussian") -> tuple[Any, Any]:
        """Return the KL divergences of a change of only the mean, and of only the standard deviation, `[B]` each.

        The first is KL(self || x), where x has the mean of `other` and the standard deviation of `self`. The second is
        KL(self || y), where y has the mean of `self` and the standard deviation of `other`. Abdolmaleki et al. 2018
        (arXiv 1812.02256, section 4.2) and V-MPO (Song et al. 2019, arXiv 1909.12238) bound both.
        """
        z = (other.mean - self.mean) * exp(-self.log_std)
        kl_mean = 0.5 * z * z
        ratio = exp(self.log_std - other.log_std)
        kl_std = other.log_std - self.log_std + 0.5 * (ratio * ratio - 1.0)
        return kl_mean.sum(-1), expand(kl_std, self.mean).sum(-1)


class GaussianMixture(Distribution):
    """A mixture of K Gaussians, `components`, for actions `[B, A]` in [-1, 1]. Sampled actions are clipped.

    `out` `[B, K A + K]` are a network's outputs: the tanh of the first are the means, and the last are the logits of
    the Gaussians. If K is 1, there are no logits. `log_std` `[K A]` has the log standard deviations.
    """

    def __init__(self, out: Any, log_std: Any, components: int) -> None:
        self.components, self.mean, self.log_std = components, tanh(out), log_std
        if components > 1:
            size = log_std.shape[-1]
            self.mean, self.logits = self.mean[..., :size].reshape(*out.shape[:-1], components, -1), out[..., size:]
            self.log_std = log_std.reshape(components, -1)

    def _chosen(self, component: Any) -> Gaussian:
        """Return the Gaussian with an index in each state, `[B]`."""
        if self.components == 1:
            return Gaussian(self.mean, self.log_std, clips=True)
        log_std = expand(self.log_std, self.mean)
        return Gaussian(part_at(self.mean, component), part_at(log_std, component), clips=True)

    def sample(self, random: Any) -> Any:
        """Return random actions. `random` is a generator."""
        logits = self.logits if self.components > 1 else 0.0 * self.mean[..., :1]
        return self._chosen(Categorical(logits).sample(random)).sample(random)

    @property
    def mode(self) -> Any:
        """The mean of the Gaussian with the largest logit."""
        return self.mean if self.components == 1 else self._chosen(self.logits.argmax(-1)).mean

    def log_prob(self, action: Any) -> Any:
        if self.components == 1:
            return Gaussian(self.mean, self.log_std).log_prob(action)
        log_probs = Gaussian(self.mean, self.log_std).log_prob(action[..., None, :])  # [B, K]
        return log_sum_exp(log_softmax(self.logits) + log_probs)


class TanhGaussian(Distribution):
    """The distribution of tanh(u), where u has a Gaussian distribution (SAC, Haarnoja et al. 2018, appendix C).

    Actions are `[B, A]` in (-1, 1). Compute the log-probabilities of new samples with `sample_log_prob`, which knows u
    and is exact even if tanh(u) rounds to 1 or -1. `log_prob` has to compute u from the action, and first replaces
    actions of 1 and -1 by the nearest float32 inside (-1, 1). Log-probabilities are densities of actions in (-1, 1),
    before the environment rescales actions to the bounds of its action space.
    """

    def __init__(self, mean: Any, log_std: Any) -> None:
        self.inner = Gaussian(mean, log_std)

    @classmethod
    def of(cls, out: Any) -> "TanhGaussian":
        """Return the distribution of a network's outputs `[B, 2 A]`: means, and log standard deviations in [-20, 2]."""
        size = out.shape[-1] // 2
        halves = (out[..., :size], out[..., size:]) if isinstance(out, np.ndarray) else out.chunk(2, -1)
        mean, log_std = halves
        return cls(mean, clamp(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def sample(self, random: Any) -> Any:
        return tanh(self.inner.sample(random))

    def sample_log_prob(self, random: Any) -> tuple[Any, Any]:
        if not isinstance(self.inner.mean, np.ndarray):
            mean = self.inner.mean
            return tanh_gaussian(mean, self.inner.log_std.expand_as(mean), normal(random, mean))
        u = self.inner.sample(random)
        return tanh(u), self._log_prob(u)

    @property
    def mode(self) -> Any:
        """The tanh of the Gaussian's mean, which is the median of the actions. Evaluations use this action."""
        return tanh(self.inner.mean)

    def log_prob(self, action: Any) -> Any:
        return self._log_prob(atanh(action))

    def _log_prob(self, u: Any) -> Any:
        """Return the log-density `[B]` of the actions tanh(u), given u `[B, A]`."""
        return self.inner.log_prob(u) - log_slope(u)

    def entropy(self) -> Any:
        """Raise ValueError, because there is no formula. Use `entropy_at`, or the mean of -log_prob over samples."""
        raise ValueError("TanhGaussian has no formula for its entropy: average -log_prob of sample_log_prob instead")

    def entropy_at(self, action: Any) -> Any:
        """Return an estimate of the entropy `[B]`: the entropy of u plus the sum of log(1 - action^2).

        `action` `[B, A]` has actions that this distribution has sampled. The mean of the estimate over such actions is
        the entropy. Gradients flow through u = mean + std * z, where z is the noise that gives this action
        (reparametrisation).
        """
        u = atanh(action)
        z = (u - self.inner.mean) * exp(-self.inner.log_std)
        fixed_z = z if isinstance(z, np.ndarray) else z.detach()
        u_with_gradient = self.inner.sample(fixed_z)  # equals `u`, and depends on the mean and standard deviation
        return self.inner.entropy() + log_slope(u_with_gradient)

    def kl(self, other: "TanhGaussian") -> Any:
        return self.inner.kl(other.inner)  # tanh is invertible, so it does not change the divergence

    def kl_parts(self, other: "TanhGaussian") -> tuple[Any, Any]:
        return self.inner.kl_parts(other.inner)


class Deterministic(Distribution):
    """One action in each state, `action` `[B, A]` in [-1, 1]. Exploration adds noise with the standard deviation `std`.

    The noise is normal, or what `sample` gets. Noisy actions are clipped to [-1, 1].
    """

    def __init__(self, action: Any, std: Any = 0.0) -> None:
        self.action, self.std = action, std

    def sample(self, random: Any) -> Any:
        return clamp(self.action + self.std * normal(random, self.action), -1.0, 1.0)

    @property
    def mode(self) -> Any:
        return self.action


class EpsilonGreedy(Distribution):
    """The discrete action with the largest value `[B, A]` or, with the probability `epsilon`, a random legal action.

    With `temperature` > 0, actions that are not random are sampled from softmax(values / temperature). `epsilon` and
    `temperature` are numbers, or arrays `[B]`. `mask`, bool `[B, A]`, is False for illegal actions.
    """

    def __init__(self, values: Any, epsilon: Any, mask: Any = None, temperature: Any = 0.0) -> None:
        self.values, self.mask = permitted(values, mask), mask
        self.epsilon, self.temperature = epsilon, temperature

    @property
    def scores(self) -> Any:
        return self.values

    def sample(self, random: Any) -> Any:
        """Return random actions. `random` is a numpy generator, or drl.Repeats, which repeats random actions."""
        rng = random if isinstance(random, np.random.Generator) else random.rng
        rows, actions = self.values.shape
        is_random, chosen = self._like(rng.random(rows)) < self._like(self.epsilon), self.values.argmax(-1)
        temperature = self._like(self.temperature)
        has_ladder = getattr(temperature, "shape", ()) != ()  # one temperature for each row; all or none are 0
        if temperature.all() if has_ladder else temperature:
            chosen = Categorical(self.values / (temperature[:, None] if has_ladder else temperature)).sample(rng)
        if self.mask is None:
            drawn = self._like(choices(rng, actions, rows))
        else:
            drawn = Categorical(0.0 * self.values, self.mask).sample(rng)
        if rng is not random:
            is_random, drawn = (self._like(each) for each in random.start(np.asarray(is_random), np.asarray(drawn)))
        return where(is_random, drawn, chosen)

    def _like(self, drawn: Any) -> Any:
        """Return an array as a tensor if the values are a tensor. Return numbers and tensors unchanged."""
        if not isinstance(drawn, np.ndarray) or isinstance(self.values, np.ndarray):
            return drawn
        return torch.from_numpy(drawn).to(self.values.device)

    @property
    def mode(self) -> Any:
        return self.values.argmax(-1)


def distribution(action: ActionSpec, out: Any, log_std: Any, mask: Any = None, *, squash: bool = False) -> Distribution:
    """Return the distribution of actions of any space in N states, given an actor's outputs `out` `[N, action.size]`.

    For a Box, `out` has the mean of each dimension, and `log_std` is `[A]` or `[N, A]`. The distribution is a Gaussian,
    or a tanh-Gaussian with `squash`. For discrete actions, `out` has logits, and `log_std` is not used. `mask`, bool in
    the shape of `out`, is False for illegal discrete actions; without a mask, all actions are legal.
    """
    if action.kind == "box":
        return TanhGaussian(out, log_std) if squash else Gaussian(out, log_std)
    return Categorical(out, mask) if action.kind == "discrete" else MultiCategorical(out, action.choices, mask)
