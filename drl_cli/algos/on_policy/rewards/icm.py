"""ICM, the intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363). This file imports torch."""

import torch
from torch import Tensor, nn

from drl_cli.algos.base import Batch
from drl_cli.algos.context import RewardConfig
from drl_cli.algos.on_policy.rewards.features import Features, mlp
from drl_cli.algos.reward_stream import Reward
from drl_cli.losses.policy import one_hot
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import ProcessGroup
from drl_cli.types import EnvSpec


class Module(Reward, nn.Module):
    """The ICM reward module: the bonus is large for transitions that the module predicts badly.

    An encoder computes features of observations. A forward model predicts the features of next_obs from the features of
    obs and the action. The bonus is the forward model's error. An inverse model predicts the action from the features
    of obs and next_obs. Only the inverse model's loss trains the encoder (Burda et al. 2018, arXiv 1808.04355). The
    forward model's loss would make the features constant, because constant features are the easiest to predict.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec, config: RewardConfig) -> None:
        super().__init__()
        assert config.hidden is not None  # conf/reward/icm.yaml has values for these options
        assert config.features is not None
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
