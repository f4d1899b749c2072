"""RND, random network distillation (Burda et al. 2018, arXiv 1810.12894). This file imports torch."""

from torch import Tensor, nn

from drl_cli.algos.base import Batch
from drl_cli.algos.context import RewardConfig
from drl_cli.algos.on_policy.rewards.features import Features, mlp
from drl_cli.algos.reward_stream import Reward
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import ProcessGroup
from drl_cli.types import EnvSpec


class Module(Reward, nn.Module):
    """The RND reward module: the bonus is large for observations that differ from the observations of earlier batches.

    A predictor learns the outputs of a fixed random network for next_obs. The bonus is the predictor's error.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec, config: RewardConfig) -> None:
        super().__init__()
        assert config.hidden is not None
        assert config.features is not None
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
