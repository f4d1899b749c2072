"""Sampled MuZero (Hubert et al. 2021, "Learning and planning in complex action spaces", ICML, arXiv 2104.06303).

Sampled MuZero is MuZero for continuous actions. Each node of the search tree has K candidate actions. Most candidates
are samples of the predicted policy, a tanh-Gaussian; the others are uniformly random. The search computes improved
probabilities of the root's candidates, and the policy learns these probabilities. The search is that of Gumbel MuZero
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
from drl_cli.algos.model_based import gumbel_muzero, muzero
from drl_cli.algos.model_based._shared import build_networks, first_steps, stored
from drl_cli.networks.config import NetworkConfig
from drl_cli.search.formulas import Gumbel
from drl_cli.types import Array, Column, EnvSpec, Schema, num_rows
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
"""Actions are clamped to [-EDGE, EDGE] before the inverse of tanh, which is infinite at -1 and 1."""


@dataclass(frozen=True, kw_only=True)
class Config(muzero.ModelConfig):
    """The options of Sampled MuZero, which conf/algo/sampled_muzero.yaml explains."""

    candidates: Count
    uniform_share: Fraction
    value_scale: Positive
    entropy_coef: NonNegative


class Policy(gumbel_muzero.Policy):
    """Chooses actions by a search over candidate actions.

    For exploration, the candidates are random, and the search adds Gumbel noise at the root. Evaluations make the
    candidates from constant noise, without Gumbel noise.
    """

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.fixed_noise = fixed_noise(config, self.action.size)

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, nn.Module]:
        return build_networks(config, network, spec, 2 * spec.action.size)

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {
            **muzero.Policy.extra_columns(config, network, spec),
            "policy": Column((config.candidates,), "float32"),
            "candidates": Column((config.candidates, spec.action.size), "float32"),
        }

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        rows, config = num_rows(obs), self.config
        normal = self.fixed_noise.expand(rows, -1, -1, -1)  # the same noise for each observation
        gumbel = np.zeros((rows, config.candidates))
        if explores:
            normal = torch.from_numpy(self.rng.standard_normal(normal.shape, np.float32))
            gumbel = self.rng.gumbel(size=(rows, config.candidates))
        found = search(config, self.model, obs, normal, gumbel)
        candidates = found.root[0].numpy()  # [E, K, A]; `root` of a `Sampled` model begins with the candidates
        action: Array = candidates[np.arange(rows), found.action]
        return action, found

    def stored(self, found: Found) -> dict[str, Tensor]:
        return {**stored(found), "candidates": found.root[0]}  # as in `search`

    def prior(self, obs: Any) -> Tensor:
        latent = self.modules["representation"](obs)
        policy, _ = self.modules["prediction"](latent)
        mean, _ = policy.chunk(2, -1)
        action: Tensor = mean.tanh()
        return action


class Algorithm(gumbel_muzero.Algorithm):
    """Trains the learned model. Re-analysis searches without exploration."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        super().__init__(config, network, spec, seed, context)
        self.fixed_noise = fixed_noise(config, spec.action.size).to(context.device)

    def policy_size(self, spec: EnvSpec) -> int:
        return 2 * spec.action.size

    def search(self, model: Model, obs: Any) -> dict[str, Tensor]:
        rows = num_rows(obs)
        normal = self.fixed_noise.expand(rows, -1, -1, -1)
        found = search(self.config, model, obs, normal, np.zeros((rows, self.config.candidates)))
        return {**stored(found), "candidates": found.root[0]}  # as in the policy's `search`

    def policy_loss(self, out: Tensor, target: Tensor, rows: Batch) -> Tensor:
        """Return the loss of the predicted policies after 0, ..., U unrolled steps, `[B, U + 1]`.

        `out` `[B, U + 1, 2 A]` are the network's outputs, which `bounded` converts to means and log standard deviations
        of a Gaussian. `target` `[B, U + 1, K]` are the searches' probabilities of the K candidates. The loss is the
        candidates' negative log-likelihood, weighted by `target`, minus `entropy_coef` times the Gaussian's entropy.
        Terms that do not depend on `out` are left out.
        """
        mean, log_std = bounded(out).unsqueeze(2).chunk(2, -1)  # [B, U + 1, 1, A] each
        before_tanh = first_steps(rows["candidates"], out.shape[1]).clamp(-EDGE, EDGE).atanh()  # [B, U + 1, K, A]
        normalized = (before_tanh - mean) / log_std.exp()
        nll = (0.5 * normalized.square() + log_std).sum(-1)  # [B, U + 1, K]
        loss: Tensor = (target * nll).sum(-1) - self.config.entropy_coef * log_std.sum((-1, -2))
        return loss

    def actions(self, rows: Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the actions of U unrolled steps, `[B, U, A]`. Actions after the end of an episode are random.

        `is_past_end`, bool with at least U columns, is True after the end. `random` `[B, U]` is uniform in [0, 1); all
        dimensions of a random action have the same value.
        """
        num = random.shape[1]
        random_actions = (2.0 * random - 1.0).unsqueeze(-1).expand(-1, -1, self.action.size)  # in [-1, 1)
        return torch.where(is_past_end[:, :num].unsqueeze(-1), random_actions, rows["action"][:, :num])


def search(config: Any, model: Model, obs: Any, normal: Tensor, noise: Array) -> Found:  # Any: Config, and observations
    """Make one tree search for each of the observations `[N, ...]`; return the results.

    Each of the M = simulations + 1 nodes of a tree has K candidate actions, made from the standard normal noise
    `normal` `[N, M, K, A]`. `noise` `[N, K]` is Gumbel noise at the root, or zeros. All candidates have the same prior.
    """
    from drl_cli.search.model import Sampled, draw_tanh_gaussian
    from drl_cli.search.run import gumbel  # imports torch

    def draw(policy: Tensor, node_noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the candidates `[N, K, A]` of one node, made from noise `[N, K, A]`, and their prior logits `[N, K]`.

        The last candidates, a fraction `uniform_share`, are uniform. They can improve a policy whose samples are all
        nearly equal.
        """
        candidates, logits = draw_tanh_gaussian(bounded(policy), node_noise)
        num_uniform = round(config.uniform_share * config.candidates)
        index = torch.arange(config.candidates, device=node_noise.device).unsqueeze(-1)
        is_uniform = index >= config.candidates - num_uniform
        uniform = torch.erf(node_noise * math.sqrt(0.5))  # in (-1, 1), because erf(x / sqrt(2)) is 2 Phi(x) - 1
        return torch.where(is_uniform, uniform, candidates), logits

    rule = Gumbel(config.candidates, value_scale=config.value_scale)
    return gumbel(Sampled(model, draw, normal), obs, config.simulations, noise, rule)


def fixed_noise(config: Any, actions: int) -> Tensor:  # Any: Config
    """Return the candidate noise `[1, M, K, A]` for searches without exploration: always the same normal numbers.

    M is the number of nodes of a tree, K the number of candidates, and A = `actions` the number of action dimensions.
    The first candidate of each node has noise 0, which gives the tanh of the policy's mean.
    """
    shape = (1, config.simulations + 1, config.candidates, actions)
    noise = np.random.default_rng(0).standard_normal(shape, np.float32)
    noise[:, :, 0] = 0.0
    return torch.from_numpy(noise)


def bounded(policy: Tensor) -> Tensor:
    """Bound the log standard deviations to (-2.5, 1.5), and return means and log standard deviations `[..., 2 A]`.

    `policy` `[..., 2 A]` are the outputs of the prediction network. A smooth bound keeps a gradient, unlike a clamp.
    """
    mean, log_std = policy.chunk(2, -1)
    return torch.cat([mean, 2.0 * (log_std / 2.0).tanh() - 0.5], -1)
