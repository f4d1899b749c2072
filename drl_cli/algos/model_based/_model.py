"""The learned model: its scalars as distributions, and the interface that a search calls."""

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
    """Scalars x as distributions over the integers from -size to size, whose mean is h(x) (MuZero, appendix F)."""

    def __init__(self, size: int, device: torch.device | None = None) -> None:
        self.values = torch.linspace(-size, size, 2 * size + 1, device=device)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the scalars `[...]` of logits `[..., 2 size + 1]`."""
        mean: Tensor = unscaled((logits.softmax(-1) * self.values).sum(-1), EPS)
        return mean

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy `[...]` of logits `[..., 2 size + 1]` with the two-hot targets `[...]`."""
        return two_hot_loss(logits, rescaled(target, EPS), self.values)


def build_networks(network: NetworkConfig, spec: EnvSpec, policy: int, support: int) -> Mapping[str, nn.Module]:
    """Return representation, dynamics and prediction, for a policy with `policy` parameters."""
    from drl_cli.networks.world_model import Dynamics, Prediction, Representation  # imports torch

    bins = 2 * support + 1
    return {
        "representation": Representation(network, spec),
        "dynamics": Dynamics(network, spec.action.size, bins),
        "prediction": Prediction(network, policy, bins),
    }


def build_heads(network: NetworkConfig) -> Mapping[str, nn.Module]:
    """Return the projection and the predictor of the consistency loss, which no policy needs."""
    from drl_cli.networks.world_model import Head  # imports torch

    return {"projection": Head(network), "predictor": Head(network)}


def encoded(action: Tensor, spec: ActionSpec) -> Tensor:
    """Return actions as the dynamics take them, float32 `[..., A]`: discrete actions as one-hot vectors."""
    return action if spec.kind == "box" else one_hot(action, spec.size)


class SearchModel:
    """The networks `nets` as a model of drl_cli.search: rewards and values are in the reward's unit."""

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
