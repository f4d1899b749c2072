"""The learned model of MuZero: its networks, its distributions of rewards and values, and the methods for a search."""

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
"""eps of h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, which compresses rewards and values (MuZero, appendix F)."""


class Support:
    """Converts between scalars (rewards, values) and distributions over the integers -size, ..., size.

    A scalar x is represented by a distribution with the mean h(x), see `EPS`.
    """

    def __init__(self, size: int, device: torch.device | None = None) -> None:
        self.values = torch.linspace(-size, size, 2 * size + 1, device=device)

    def scalars(self, logits: Tensor) -> Tensor:
        """Return the scalars `[...]` that the logits `[..., 2 size + 1]` of distributions represent."""
        compressed = (logits.softmax(-1) * self.values).sum(-1)  # the mean of the distribution, h(x)
        scalars: Tensor = unscaled(compressed, EPS)
        return scalars

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy `[...]` of predicted logits `[..., 2 size + 1]` and target scalars `[...]`.

        A target is compressed by h (see `EPS`), clipped to [-size, size], and then represented by probabilities of the
        two nearest integers, whose mean is the compressed target.
        """
        return two_hot_loss(logits, rescaled(target, EPS), self.values)


def build_networks(config: Any, network: NetworkConfig, spec: EnvSpec, policy_size: int) -> Mapping[str, nn.Module]:
    """Return new networks by name: representation, dynamics and prediction.

    With `config.value_prefix`, the network `value_prefix` predicts sums of rewards, and the dynamics predict no reward.
    `policy_size` is the number of outputs that give the policy in one state. Rewards and values are distributions over
    the integers from -`config.support` to `config.support`.
    """
    from drl_cli.networks.world_model import Dynamics, Prediction, Representation, ValuePrefix  # imports torch

    bins = 2 * config.support + 1
    networks: dict[str, nn.Module] = {
        "representation": Representation(network, spec),
        "dynamics": Dynamics(network, spec.action.size, 0 if config.value_prefix else bins),
        "prediction": Prediction(network, policy_size, bins),
    }
    if config.value_prefix:
        networks["value_prefix"] = ValuePrefix(network, bins)
    return networks


def build_heads(network: NetworkConfig) -> Mapping[str, nn.Module]:
    """Return two new networks of EfficientZero's consistency loss: projection and predictor. A search needs neither."""
    from drl_cli.networks.world_model import ConsistencyMLP  # imports torch

    return {"projection": ConsistencyMLP(network), "predictor": ConsistencyMLP(network)}


def action_inputs(action: Tensor, spec: ActionSpec) -> Tensor:
    """Return actions as float32 inputs of the dynamics, `[..., A]`: Box actions unchanged, discrete actions one-hot."""
    return action if spec.kind == "box" else one_hot(action, spec.size)


def make_model(nets: Nets, config: Any, support: Support, action: ActionSpec) -> SearchModel:  # Any: ModelConfig
    """Return a model for tree searches that calls the networks `nets`; a PrefixModel with `config.value_prefix`."""
    kind = PrefixModel if config.value_prefix else SearchModel
    return kind(nets, config, support, action)


class SearchModel:
    """A model for tree searches (`drl_cli.search.model.Model`) that calls the networks `nets`.

    Embeddings are latent states `[B, Z]`. Rewards and values are scalars in the unit of the environment's reward.
    """

    def __init__(self, nets: Nets, config: Any, support: Support, action: ActionSpec) -> None:  # Any: ModelConfig
        self.nets, self.config, self.support, self.action = nets, config, support, action

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Tensor = self.nets.representation(obs)
        policy, value = self.nets.prediction(latent)
        return latent, policy, self.support.scalars(value)

    def recurrent(self, embedding: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        latent, reward = self.nets.dynamics(embedding, action_inputs(action, self.action))
        policy, value = self.nets.prediction(latent)
        reward, value = self.support.scalars(torch.stack([reward, value])).unbind()  # one call is faster than two
        return reward, self.discount(latent), policy, value, latent

    def discount(self, latent: Tensor) -> Tensor:
        """Return gamma for each latent state `[B, Z]`, `[B]`. The model does not predict the end of an episode."""
        return torch.full((len(latent),), self.config.gamma, device=latent.device)


class PrefixModel(SearchModel):
    """A SearchModel that computes rewards from EfficientZero's value prefix (arXiv 2111.00210, section 4.2).

    The value prefix of a node is the predicted sum of the rewards from the root to the node. The reward of a step is
    the child's prefix minus the parent's prefix. The sum is not discounted, as in the authors' code and in LightZero;
    the formula in the paper has a discount.

    An embedding has four tensors: latent states `[B, Z]`, recurrent states `[B, 2 Z]`, prefixes `[B]`, and the numbers
    `[B]` of steps since the sum began. After `config.unroll_steps` steps, a new sum begins, because the networks never
    learn longer sums: recurrent state, prefix and number of steps are set to 0.
    """

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Any  # a tensor
        latent, policy, value = super().root(obs)
        prefix, steps = torch.zeros_like(value), torch.zeros_like(value)
        return (latent, no_memory(latent), prefix, steps), policy, value

    def recurrent(self, embedding: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        latent, memory, parent_prefix, steps = embedding
        latent, _ = self.nets.dynamics(latent, action_inputs(action, self.action))
        prefix, memory = self.nets.value_prefix(latent, memory)
        policy, value = self.nets.prediction(latent)
        prefix, value = self.support.scalars(torch.stack([prefix, value])).unbind()
        steps = steps + 1.0
        goes_on = steps < self.config.unroll_steps  # otherwise a new sum begins
        next_prefix, next_steps = (torch.where(goes_on, x, 0.0) for x in (prefix, steps))
        memory = torch.where(goes_on.unsqueeze(1), memory, 0.0)
        reward = prefix - parent_prefix
        return reward, self.discount(latent), policy, value, (latent, memory, next_prefix, next_steps)


def no_memory(latent: Tensor) -> Tensor:
    """Return zeros `[B, 2 Z]`, the first recurrent states of the value prefix, for latent states `[B, Z]`."""
    return latent.new_zeros(len(latent), 2 * latent.shape[1])
