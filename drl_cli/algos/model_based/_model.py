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


def build_networks(network: NetworkConfig, spec: EnvSpec, policy: int, support: int) -> Mapping[str, nn.Module]:
    """Return new networks: representation, dynamics and prediction.

    `policy` is the number of the policy's parameters in one state. Rewards and values have the support -`support`, ...,
    `support`.
    """
    from drl_cli.networks.world_model import Dynamics, Prediction, Representation  # imports torch

    bins = 2 * support + 1
    return {
        "representation": Representation(network, spec),
        "dynamics": Dynamics(network, spec.action.size, bins),
        "prediction": Prediction(network, policy, bins),
    }


def build_heads(network: NetworkConfig) -> Mapping[str, nn.Module]:
    """Return the projection and the predictor of the consistency loss. The policy does not need them."""
    from drl_cli.networks.world_model import Head  # imports torch

    return {"projection": Head(network), "predictor": Head(network)}


def encoded(action: Tensor, spec: ActionSpec) -> Tensor:
    """Return actions as inputs of the dynamics, float32 `[..., A]`: discrete actions as one-hot vectors."""
    return action if spec.kind == "box" else one_hot(action, spec.size)


class SearchModel:
    """The networks `nets` as a model for drl_cli.search. Rewards and values have the unit of the reward."""

    def __init__(self, nets: Nets, support: Support, gamma: float, action: ActionSpec) -> None:
        self.nets, self.support, self.gamma, self.action = nets, support, gamma, action

    def root(self, obs: Any) -> tuple[Tensor, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Tensor = self.nets.representation(obs)
        policy, value = self.nets.prediction(latent)
        return latent, policy, self.support.mean(value)

    def recurrent(self, latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        latent, reward = self.nets.dynamics(latent, encoded(action, self.action))
        policy, value = self.nets.prediction(latent)
        discount = torch.full((len(latent),), self.gamma, device=latent.device)
        reward, value = self.support.mean(torch.stack([reward, value])).unbind()
        return reward, discount, policy, value, latent
