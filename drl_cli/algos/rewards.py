"""The reward modules RND and ICM: intrinsic rewards for on-policy algorithms. This file imports torch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.algos.base import Batch
from drl_cli.algos.context import RewardConfig
from drl_cli.algos.reward_stream import Reward
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.losses.policy import one_hot
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.torsos import torso
from drl_cli.types import EnvSpec

LIMIT = 5.0
"""Normalised features are clipped to [-LIMIT, LIMIT] (Burda et al. 2018, arXiv 1810.12894, section 2.4)."""


class Features(nn.Module):
    """Turns observations into features `[B, size]` with mean 0 and standard deviation 1, clipped to [-5, 5].

    The features of images are the outputs of a random CNN, which is never trained. Other observations are flattened. A
    feature that was constant so far becomes 0. Mean and standard deviation are those of all batches of the run so far.
    The buffer `sums`, float64 `[3, size]`, has the number of batches, the sum of the batches' means, and the sum of the
    batches' mean squares.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.torso = torso(network, spec).requires_grad_(False)
        self.size: int = self.torso.size  # type: ignore[assignment]
        self.register_buffer("sums", torch.zeros(3, self.size, dtype=torch.float64))
        self._sums: Tensor | None = None

    def observe(self, obs: Any, group: ProcessGroup) -> None:  # Any: a tensor, or a dict of tensors
        """Add this trainer's observations `[B, ...]` and those of all other trainers to the statistics.

        The next call of `observe` removes them from the statistics, unless `keep` is called in between. A skipped
        update (a loss is not finite) does not call `keep`.
        """
        x = self.torso(obs).double()
        one_batch = torch.ones_like(x[0])
        statistics = torch.stack([one_batch, x.mean(0), x.square().mean(0)])
        group.mean_(statistics)
        self._sums = self.get_buffer("sums") + statistics

    def keep(self) -> None:
        if self._sums is not None:
            self.get_buffer("sums").copy_(self._sums)
            self._sums = None

    def forward(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        num_batches, sum_of_means, sum_of_squares = self.get_buffer("sums") if self._sums is None else self._sums
        num_batches = num_batches.clamp_min(1.0)
        mean, mean_square = sum_of_means / num_batches, sum_of_squares / num_batches
        variance = mean_square - mean.square()
        is_constant = variance <= 1e-12 * mean_square  # a smaller variance is only a rounding error
        deviation = torch.where(is_constant, 1.0, variance.clamp_min(0).sqrt())
        x: Tensor = (self.torso(obs) - mean) / deviation
        return x.clamp(-LIMIT, LIMIT).float()


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Return an MLP from `[B, inputs]` to `[B, outputs]` with ReLU after each layer of `hidden` units.

    The initial weights are orthogonal with the gain sqrt(2), and the initial biases are 0, as in the code of Burda et
    al. 2018 (arXiv 1810.12894).
    """
    sizes = (inputs, *hidden, outputs)
    layers = [nn.Linear(size, next_size) for size, next_size in pairwise(sizes)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    modules = [module for layer in layers for module in (layer, nn.ReLU())]
    return nn.Sequential(*modules[:-1])  # no ReLU after the last layer


class RND(Reward, nn.Module):
    """Random network distillation (Burda et al. 2018, arXiv 1810.12894): the bonus of observations that are new.

    A predictor learns the outputs of a fixed random network for next_obs. The bonus is the predictor's error.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec, config: RewardConfig) -> None:
        super().__init__()
        assert config.hidden
        assert config.features
        self.seen = Features(network, spec)  # normalised by the observations seen so far
        self.random = mlp(self.seen.size, config.hidden, config.features).requires_grad_(False)
        self.predictor = mlp(self.seen.size, config.hidden, config.features)

    def observe(self, batch: Batch, group: ProcessGroup) -> None:
        self.seen.observe(batch["next_obs"], group)

    def keep(self) -> None:
        self.seen.keep()

    def bonus(self, batch: Batch) -> Tensor:
        """Return the predictor's mean squared error for each transition, `[B]`."""
        x = self.seen(batch["next_obs"])
        error: Tensor = self.predictor(x) - self.random(x)
        return error.square().mean(-1)


class ICM(Reward, nn.Module):
    """The intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363): the bonus of badly predicted transitions.

    An encoder computes features of observations. A forward model predicts the features of next_obs from the features of
    obs and the action. The bonus is the forward model's error. An inverse model predicts the action from the features
    of obs and next_obs. Only the inverse model's loss trains the encoder (Burda et al. 2018, arXiv 1808.04355). The
    forward model's loss would make the features constant, because constant features are the easiest to predict.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec, config: RewardConfig) -> None:
        super().__init__()
        assert config.hidden  # conf/reward/icm.yaml has values for these options
        assert config.features
        assert config.forward_share is not None
        self.forward_share, self.choices = config.forward_share, spec.action.choices
        size, actions = config.features, spec.action.size
        self.seen = Features(network, spec)  # a module that makes normalised features of observations
        self.encoder = mlp(self.seen.size, config.hidden, size)
        self.inverse_model = mlp(2 * size, config.hidden, actions)
        self.forward_model = mlp(size + actions, config.hidden, size)

    def observe(self, batch: Batch, group: ProcessGroup) -> None:
        self.seen.observe(batch["next_obs"], group)

    def keep(self) -> None:
        self.seen.keep()

    def bonus(self, batch: Batch) -> Tensor:
        """Return the bonus of each transition, `[B]`: half the squared error of the forward model (equation 6)."""
        obs, next_obs = self.features(batch)
        return self.forward_loss(batch, obs, next_obs)

    def loss(self, batch: Batch) -> Tensor:
        """Return `forward_share` * forward loss + (1 - `forward_share`) * inverse loss, `[B]` (equation 7)."""
        obs, next_obs = self.features(batch)
        share = self.forward_share
        return share * self.forward_loss(batch, obs, next_obs) + (1 - share) * self.inverse_loss(batch, obs, next_obs)

    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the encoder's features of obs and next_obs, `[B, F]` each."""
        return self.encoder(self.seen(batch["obs"])), self.encoder(self.seen(batch["next_obs"]))

    def forward_loss(self, batch: Batch, obs: Tensor, next_obs: Tensor) -> Tensor:
        """Return half the squared error of the forward model, summed over the features, for each transition, `[B]`.

        `obs` and `next_obs` are the encoder's features `[B, F]`. The gradient does not reach the encoder.
        """
        predicted: Tensor = self.forward_model(torch.cat([obs.detach(), self.actions(batch)], -1))
        return 0.5 * (predicted - next_obs.detach()).square().sum(-1)

    def inverse_loss(self, batch: Batch, obs: Tensor, next_obs: Tensor) -> Tensor:
        """Return the loss of the inverse model for each transition, `[B]`.

        The loss is the cross-entropy of discrete actions, summed over their components, or half the squared error of
        Box actions, summed over their dimensions. `obs` and `next_obs` are the encoder's features `[B, F]`.
        """
        out: Tensor = self.inverse_model(torch.cat([obs, next_obs], -1))
        if not self.choices:
            return 0.5 * (out - self.actions(batch)).square().sum(-1)
        log_probs = [logits.log_softmax(-1) for logits in torch.split(out, list(self.choices), -1)]
        return -(torch.cat(log_probs, -1) * self.actions(batch)).sum(-1)  # minus log p(action)

    def actions(self, batch: Batch) -> Tensor:
        """Return the batch's actions as float vectors `[B, A]`: Box actions clipped to [-1, 1], or one-hot vectors.

        The one-hot vectors of a MultiDiscrete action are joined to one vector.
        """
        action: Tensor = batch["action"]
        if not self.choices:  # a Box
            return action.clamp(-1.0, 1.0)
        columns = action.long().view(len(action), len(self.choices)).unbind(-1)
        return torch.cat([one_hot(column, size) for column, size in zip(columns, self.choices, strict=True)], -1)
