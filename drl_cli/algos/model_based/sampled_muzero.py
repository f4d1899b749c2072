"""Sampled MuZero (Hubert et al. 2021, "Learning and planning in complex action spaces", ICML, arXiv 2104.06303).

Sampled MuZero is MuZero for continuous actions. Each node of the tree has K candidate actions. Most of these come from
the predicted policy, a tanh-Gaussian, and some from the uniform distribution. The search gives improved probabilities
of the candidates, and the policy learns these probabilities. The search at the root is that of Gumbel MuZero
(Danihelka et al. 2022), whereas the paper uses PUCT.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Batch
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.model_based._learner import ModelConfig, ModelLearner
from drl_cli.algos.model_based._model import build_networks
from drl_cli.algos.model_based._policy import SearchPolicy, num_rows, stored
from drl_cli.algos.model_based._targets import first_steps
from drl_cli.networks.config import NetworkConfig
from drl_cli.search.formulas import Gumbel
from drl_cli.types import Array, Column, EnvSpec, Schema
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.search.model import Model
    from drl_cli.search.run import Found

ACTIONS = ("box",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")
EDGE = 1.0 - 1e-6
"""Actions are clamped to [-EDGE, EDGE] before the inverse of tanh."""


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """Options of Sampled MuZero."""

    candidates: Count
    uniform_share: Fraction
    value_scale: Positive
    entropy_coef: NonNegative


class Policy(SearchPolicy):
    """Explores by random candidates and by the Gumbel noise of the search."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.fixed = fixed_noise(config, self.action.size)

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, nn.Module]:
        return build_networks(config, network, spec, 2 * spec.action.size)

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {
            **SearchPolicy.extra_columns(config, network, spec),
            "policy": Column((config.candidates,), "float32"),
            "candidates": Column((config.candidates, spec.action.size), "float32"),
        }

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        rows, config = num_rows(obs), self.config
        normal, noise = self.fixed.expand(rows, -1, -1, -1), np.zeros((rows, config.candidates))
        if explores:
            normal = torch.from_numpy(self.rng.standard_normal(normal.shape, np.float32))
            noise = self.rng.gumbel(size=(rows, config.candidates))
        found = search(config, self.model, obs, normal, noise)
        action: Array = found.root[0].numpy()[np.arange(rows), found.action]
        return action, found

    def stored(self, found: Found) -> dict[str, Tensor]:
        return {**stored(found), "candidates": found.root[0]}

    def prior(self, obs: Any) -> Tensor:
        mean, _ = self.modules["prediction"](self.modules["representation"](obs))[0].chunk(2, -1)
        action: Tensor = mean.tanh()
        return action


class Algorithm(ModelLearner):
    """Learns the model in a trainer."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        super().__init__(config, network, spec, seed, context)
        self.fixed = fixed_noise(config, spec.action.size).to(context.device)

    def policy_size(self, spec: EnvSpec) -> int:
        return 2 * spec.action.size

    def search(self, model: Model, obs: Any) -> dict[str, Tensor]:
        rows = num_rows(obs)
        normal = self.fixed.expand(rows, -1, -1, -1)
        found = search(self.config, model, obs, normal, np.zeros((rows, self.config.candidates)))
        return {**stored(found), "candidates": found.root[0]}

    def policy_loss(self, out: Tensor, target: Tensor, rows: Batch) -> Tensor:
        """Return the negative log-likelihood of the candidates minus an entropy bonus, `[B, unrolled steps + 1]`.

        `target` has the search's probability of each candidate, and `out` `[..., 2 A]` the predicted Gaussian. Terms
        that do not depend on `out` are left out.
        """
        mean, log_std = bounded(out).unsqueeze(2).chunk(2, -1)
        drawn = first_steps(rows["candidates"], out.shape[1]).clamp(-EDGE, EDGE).atanh()
        nll = (0.5 * ((drawn - mean) / log_std.exp()).square() + log_std).sum(-1)
        loss: Tensor = (target * nll).sum(-1) - self.config.entropy_coef * log_std.sum((-1, -2))
        return loss

    def actions(self, rows: Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the actions as in ModelLearner; all dimensions of a random action have the same value in [-1, 1)."""
        steps = random.shape[1]
        drawn = (2.0 * random - 1.0).unsqueeze(-1).expand(-1, -1, self.action.size)
        return torch.where(is_past_end[:, :steps].unsqueeze(-1), drawn, rows["action"][:, :steps])


def search(config: Any, model: Model, obs: Any, normal: Tensor, noise: Array) -> Found:  # Any: Config, and observations
    """Search from observations `[N, ...]`; return the results.

    Standard normal noise `normal` `[N, M, K, A]` gives the K candidates of each of the M nodes. `noise` is Gumbel noise
    `[N, K]`. The fraction `uniform_share` of the candidates is uniform, so that the search can improve even a policy
    whose samples are all nearly equal. All candidates have the same prior.
    """
    from drl_cli.search.run import gumbel  # imports torch
    from drl_cli.search.sampled import Sampled, draw_tanh_gaussian

    def draw(policy: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        candidates, logits = draw_tanh_gaussian(bounded(policy), normal)
        num = round(config.uniform_share * config.candidates)
        is_uniform = torch.arange(config.candidates, device=normal.device).unsqueeze(-1) >= config.candidates - num
        return torch.where(is_uniform, torch.erf(normal * math.sqrt(0.5)), candidates), logits

    rule = Gumbel(config.candidates, value_scale=config.value_scale)
    return gumbel(Sampled(model, draw, normal), obs, config.simulations, noise, rule)


def fixed_noise(config: Any, actions: int) -> Tensor:  # Any: Config
    """Return constant noise for evaluations, `[1, M, K, A]`. The first candidate has noise 0, so it is the mode."""
    shape = (1, config.simulations + 1, config.candidates, actions)
    noise = np.random.default_rng(0).standard_normal(shape, np.float32)
    noise[:, :, 0] = 0.0
    return torch.from_numpy(noise)


def bounded(policy: Tensor) -> Tensor:
    """Return means and log standard deviations `[..., 2 A]`, with the latter bounded to (-2.5, 1.5) by tanh."""
    mean, log_std = policy.chunk(2, -1)
    return torch.cat([mean, 2.0 * (log_std / 2.0).tanh() - 0.5], -1)
