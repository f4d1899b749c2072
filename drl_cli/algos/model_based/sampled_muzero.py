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
from functools import cache
from typing import Any

import numpy as np

import drl_cli.api as drl
from drl_cli.algos.model_based import _shared, gumbel_muzero, muzero
from drl_cli.api import nn, torch
from drl_cli.search.formulas import Gumbel
from drl_cli.types import num_rows
from drl_cli.utils.lazy import Tensor

ACTIONS = ("box",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")
EDGE = 1.0 - 1e-6
"""Actions are clamped to [-EDGE, EDGE] before the inverse of tanh, which is infinite at -1 and 1."""


@dataclass(frozen=True, kw_only=True)
class Config(muzero.ModelConfig):
    """The options of Sampled MuZero, which conf/algo/sampled_muzero.yaml explains."""

    candidates: drl.Count
    uniform_share: drl.Fraction
    value_scale: drl.Positive
    entropy_coef: drl.NonNegative


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, nn.Module]:
    """Return the networks by name, with a mean and a log standard deviation for each dimension of the action."""
    return _shared.networks(config, network, spec, 2 * spec.action.size)


def search(config: Any, model: Any, obs: Any, action: Any, explore: Mapping[str, Any] | None) -> _shared.Searched:
    """Search from observations `[N, ...]`; return what `muzero.search` returns, with a column `candidates` `[N, K, A]`.

    Each of the M = simulations + 1 nodes of a tree has K candidate actions, which all have the same prior. To explore,
    they are random, and the root has Gumbel noise. Otherwise, they are made from constant noise.
    """
    from drl_cli.search.model import Sampled, draw_tanh_gaussian

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

    rows, rule = num_rows(obs), Gumbel(config.candidates, value_scale=config.value_scale)
    normal = fixed_noise(config.simulations + 1, config.candidates, action.size)
    noise = np.zeros((rows, config.candidates))
    if explore:
        normal = explore["rng"].standard_normal((rows, *normal.shape[1:]), np.float32)
        noise = explore["rng"].gumbel(size=noise.shape)
    device = (obs if isinstance(obs, torch.Tensor) else next(iter(obs.values()))).device
    sampled = Sampled(model, draw, torch.from_numpy(normal).to(device).expand(rows, -1, -1, -1))
    found = drl.search.gumbel(sampled, obs, config.simulations, noise, rule)
    candidates = found.root[0]  # `root` of a `Sampled` model begins with the candidates
    best: drl.Array = candidates.cpu().numpy()[np.arange(rows), found.action]
    return best, {**_shared.stored(found), "candidates": candidates}


@cache
def fixed_noise(nodes: int, candidates: int, actions: int) -> drl.Array:
    """Return the noise `[1, nodes, candidates, actions]` without exploration: always the same normal numbers.

    The first candidate of each node has noise 0, which gives the tanh of the policy's mean.
    """
    noise = np.random.default_rng(0).standard_normal((1, nodes, candidates, actions), np.float32)
    noise[:, :, 0] = 0.0
    return noise


def bounded(policy: Tensor) -> Tensor:
    """Bound the log standard deviations to (-2.5, 1.5), and return means and log standard deviations `[..., 2 A]`.

    `policy` `[..., 2 A]` are the outputs of the prediction network. A smooth bound keeps a gradient, unlike a clamp.
    """
    mean, log_std = policy.chunk(2, -1)
    return torch.cat([mean, 2.0 * (log_std / 2.0).tanh() - 0.5], -1)


class Policy(muzero.Policy):
    """Chooses actions by a search over candidate actions."""

    search, networks = staticmethod(search), staticmethod(networks)

    @staticmethod
    def extra_columns(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> drl.Schema:
        return {
            **muzero.Policy.extra_columns(config, network, spec),
            "policy": drl.Column((config.candidates,), "float32"),
            "candidates": drl.Column((config.candidates, spec.action.size), "float32"),
        }

    def prior(self, obs: Any) -> Tensor:
        latent = self.modules["representation"](obs)
        policy, _ = self.modules["prediction"](latent)
        mean, _ = policy.chunk(2, -1)
        action: Tensor = mean.tanh()
        return action


class Algorithm(gumbel_muzero.Algorithm):
    """Trains the learned model."""

    search, file = staticmethod(search), {"networks": networks}

    def policy_loss(self, out: Tensor, target: Tensor, rows: drl.Batch) -> Tensor:
        """Return the loss of the predicted policies after 0, ..., U unrolled steps, `[B, U + 1]`.

        `out` `[B, U + 1, 2 A]` are the network's outputs, which `bounded` converts to means and log standard deviations
        of a Gaussian. `target` `[B, U + 1, K]` are the searches' probabilities of the K candidates. The loss is the
        candidates' negative log-likelihood, weighted by `target`, minus `entropy_coef` times the Gaussian's entropy.
        Terms that do not depend on `out` are left out.
        """
        mean, log_std = bounded(out).unsqueeze(2).chunk(2, -1)  # [B, U + 1, 1, A] each
        candidates = _shared.first_steps(rows["candidates"], out.shape[1])  # [B, U + 1, K, A]
        before_tanh = candidates.clamp(-EDGE, EDGE).atanh()
        normalized = (before_tanh - mean) / log_std.exp()
        nll = (0.5 * normalized.square() + log_std).sum(-1)  # [B, U + 1, K]
        loss: Tensor = (target * nll).sum(-1) - self.config.entropy_coef * log_std.sum((-1, -2))
        return loss

    def actions(self, rows: drl.Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the actions of U unrolled steps, `[B, U, A]`. Actions after the end of an episode are random.

        `is_past_end`, bool with at least U columns, is True after the end. `random` `[B, U]` is uniform in [0, 1); all
        dimensions of a random action have the same value.
        """
        num = random.shape[1]
        random_actions = (2.0 * random - 1.0).unsqueeze(-1).expand(-1, -1, self.spec.action.size)  # in [-1, 1)
        return torch.where(is_past_end[:, :num].unsqueeze(-1), random_actions, rows["action"][:, :num])
