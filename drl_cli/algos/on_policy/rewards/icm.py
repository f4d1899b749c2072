"""The intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363). This file imports torch."""

import torch
from torch import Tensor, nn

from drl_cli.algos.base import Batch
from drl_cli.algos.on_policy.rewards.features import Features, mlp
from drl_cli.algos.on_policy.rewards.stream import Reward
from drl_cli.algos.reward_config import RewardConfig
from drl_cli.losses.policy import one_hot
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import ProcessGroup
from drl_cli.types import EnvSpec


class Module(Reward, nn.Module):
    """The bonus is the error of a forward model, which predicts the features of next_obs from obs and action.

    An inverse model predicts the action from the features of obs and next_obs. Only the inverse model's loss trains the
    encoder of the features (Burda et al. 2018, arXiv 1808.04355). The forward model's loss would make the features
    constant, because constant features are the easiest to predict.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec, config: RewardConfig) -> None:
        super().__init__()
        assert config.hidden is not None
        assert config.features is not None
        assert config.forward_share is not None
        self.forward_share, self.choices = config.forward_share, spec.action.choices
        size, actions = config.features, spec.action.size
        self.seen = Features(network, spec)
        self.encoder = mlp(self.seen.size, config.hidden, size)
        self.inverse = mlp(2 * size, config.hidden, actions)
        self.model = mlp(size + actions, config.hidden, size)

    def observe(self, batch: Batch, group: ProcessGroup) -> None:
        self.seen.observe(batch["next_obs"], group)

    def keep(self) -> None:
        self.seen.keep()

    def bonus(self, batch: Batch) -> Tensor:
        """Return the bonus of each row, `[B]`: half the squared error of the forward model (equation 6)."""
        return self.forward_loss(batch, *self.features(batch))

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted sum of both models' losses of each row, `[B]` (equation 7)."""
        features, share = self.features(batch), self.forward_share
        return share * self.forward_loss(batch, *features) + (1 - share) * self.inverse_loss(batch, *features)

    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the learned features of obs and next_obs, `[B, features]` each."""
        return self.encoder(self.seen(batch["obs"])), self.encoder(self.seen(batch["next_obs"]))

    def forward_loss(self, batch: Batch, now: Tensor, then: Tensor) -> Tensor:
        """Return half the squared error of the forward model, `[B]`; its gradient does not reach the features."""
        predicted: Tensor = self.model(torch.cat([now.detach(), self.actions(batch)], -1))
        return 0.5 * (predicted - then.detach()).square().sum(-1)

    def inverse_loss(self, batch: Batch, now: Tensor, then: Tensor) -> Tensor:
        """Return the inverse model's cross entropy for choices, or half its squared error for box actions, `[B]`."""
        out: Tensor = self.inverse(torch.cat([now, then], -1))
        if not self.choices:
            return 0.5 * (out - self.actions(batch)).square().sum(-1)
        logs = [part.log_softmax(-1) for part in torch.split(out, [*self.choices], -1)]
        return -(torch.cat(logs, -1) * self.actions(batch)).sum(-1)

    def actions(self, batch: Batch) -> Tensor:
        """Return the actions as float vectors `[B, actions]`: box actions clipped to [-1, 1], choices one-hot."""
        action: Tensor = batch["action"]
        if not self.choices:
            return action.clamp(-1.0, 1.0)
        columns = action.long().view(len(action), len(self.choices)).unbind(-1)
        return torch.cat([one_hot(a, n) for a, n in zip(columns, self.choices, strict=True)], -1)
