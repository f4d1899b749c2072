"""The learned model: its networks, its categorical rewards and values, and the interface that a search calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from drl_cli.losses.distributional import two_hot_loss
from drl_cli.losses.policy import one_hot
from drl_cli.losses.value import rescaled, unscaled
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Nets
from drl_cli.types import ActionSpec, EnvSpec
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.search.model import Embedding

EPS = 1e-3
"""eps of h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, the transform of rewards and values."""


class Support:
    """Represents a scalar x as a distribution over the integers from -size to size with mean h(x) (appendix F)."""

    def __init__(self, size: int, device: torch.device | None = None) -> None:
        self.values = torch.linspace(-size, size, 2 * size + 1, device=device)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the scalars `[...]` that logits `[..., 2 size + 1]` represent."""
        mean: Tensor = unscaled((logits.softmax(-1) * self.values).sum(-1), EPS)
        return mean

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy `[...]` of logits `[..., 2 size + 1]` and the two-hot vectors of scalars `[...]`."""
        return two_hot_loss(logits, rescaled(target, EPS), self.values)


def build_networks(config: Any, network: NetworkConfig, spec: EnvSpec, policy: int) -> Mapping[str, nn.Module]:
    """Return new networks: representation, dynamics, prediction and, with `config.value_prefix`, the value prefix.

    `policy` is the number of the policy's parameters in one state. Rewards and values have the support -`support`, ...,
    `support`.
    """
    from drl_cli.networks.world_model import Dynamics, Prediction, Representation, ValuePrefix  # imports torch

    bins = 2 * config.support + 1
    networks = {
        "representation": Representation(network, spec),
        "dynamics": Dynamics(network, spec.action.size, 0 if config.value_prefix else bins),
        "prediction": Prediction(network, policy, bins),
    }
    return networks | ({"value_prefix": ValuePrefix(network, bins)} if config.value_prefix else {})


def build_heads(network: NetworkConfig) -> Mapping[str, nn.Module]:
    """Return the projection and the predictor of the consistency loss. The policy does not need them."""
    from drl_cli.networks.world_model import Head  # imports torch

    return {"projection": Head(network), "predictor": Head(network)}


def encoded(action: Tensor, spec: ActionSpec) -> Tensor:
    """Return actions as inputs of the dynamics, float32 `[..., A]`: discrete actions as one-hot vectors."""
    return action if spec.kind == "box" else one_hot(action, spec.size)


def make_model(nets: Nets, config: Any, support: Support, action: ActionSpec) -> SearchModel:  # Any: ModelConfig
    """Return the networks as a model for searches."""
    kind = PrefixModel if config.value_prefix else SearchModel
    return kind(nets, config, support, action)


class SearchModel:
    """The networks `nets` as a model for drl_cli.search. Rewards and values have the unit of the reward."""

    def __init__(self, nets: Nets, config: Any, support: Support, action: ActionSpec) -> None:  # Any: ModelConfig
        self.nets, self.config, self.support, self.action = nets, config, support, action

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Tensor = self.nets.representation(obs)
        policy, value = self.nets.prediction(latent)
        return latent, policy, self.support.mean(value)

    def recurrent(self, embedding: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        latent, reward = self.nets.dynamics(embedding, encoded(action, self.action))
        policy, value = self.nets.prediction(latent)
        reward, value = self.support.mean(torch.stack([reward, value])).unbind()
        return reward, self.discount(latent), policy, value, latent

    def discount(self, latent: Tensor) -> Tensor:
        """Return the discount `[B]` of what follows latent states `[B, Z]`."""
        return torch.full((len(latent),), self.config.gamma, device=latent.device)


class PrefixModel(SearchModel):
    """A SearchModel whose networks predict EfficientZero's value prefix (arXiv 2111.00210, section 4.2).

    The value prefix of a node is the sum of the rewards since the root. As in the authors' code and in LightZero, and
    unlike the paper's formula, it is not discounted, so that the reward of an edge is the child's prefix minus the
    parent's. Embeddings are latent states, recurrent states, prefixes, and numbers of steps. The last three begin again
    at 0 after `unroll_steps` steps, because no loss has longer sums. (The paper's horizon and unroll are both 5.)
    """

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Any  # a tensor
        latent, policy, value = super().root(obs)
        return (latent, no_memory(latent), torch.zeros_like(value), torch.zeros_like(value)), policy, value

    def recurrent(self, embedding: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        latent, memory, before, steps = embedding
        latent, _ = self.nets.dynamics(latent, encoded(action, self.action))
        prefix, memory = self.nets.value_prefix(latent, memory)
        policy, value = self.nets.prediction(latent)
        prefix, value = self.support.mean(torch.stack([prefix, value])).unbind()
        steps = steps + 1.0
        goes_on = steps < self.config.unroll_steps
        kept = [torch.where(goes_on, x, 0.0) for x in (prefix, steps)]
        memory = torch.where(goes_on.unsqueeze(1), memory, 0.0)
        return prefix - before, self.discount(latent), policy, value, (latent, memory, *kept)


def no_memory(latent: Tensor) -> Tensor:
    """Return the recurrent states `[B, 2 Z]` at roots with latent states `[B, Z]`: 0."""
    return latent.new_zeros(len(latent), 2 * latent.shape[1])
