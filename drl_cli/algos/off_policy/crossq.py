"""CrossQ (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning", arXiv 1902.05605).

CrossQ is SAC without target networks. The critics have batch renormalisation. They evaluate (s, a) and (s', a') in one
joined batch, so that the same batch statistics normalise both.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import BatchNormPolicy, Random, check_one_trainer
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import twin_critics
from drl_cli.optim.gradients import Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction, Natural

ACTIONS = ("box",)


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """The options of CrossQ: those of SAC, and the options of batch renormalisation.

    `momentum` is the weight of a batch's statistics in each update of the running statistics. During the first
    `warm_up` updates, batch renormalisation is ordinary batch normalisation.
    """

    momentum: Fraction
    warm_up: Natural


class Policy(BatchNormPolicy):
    """The stochastic actor of SAC, without batch norm."""


class Algorithm(SoftAlgorithm):
    """Learns the actor, the critics and the entropy temperature from batches."""

    has_targets = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        check_one_trainer(config.name, self.context)
        if self.context.optimizer.name in ("adam", "adamw"):
            self.betas = (0.5, 0.999)  # as in the paper
        super().setup(config, spec)

    def make_critics(self) -> Any:
        from drl_cli.networks import batch_renorm  # imports torch

        config, inputs = self.config, self.encoder.size + self.size
        return batch_renorm.RenormCritics(
            self.network, inputs, ensemble=2, momentum=config.momentum, warm_up=config.warm_up
        )

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the critics' mean squared Bellman errors, and a dict of metrics and columns.

        The critics evaluate (s, a) and (s', a') in one forward pass, which normalises with the statistics of the joined
        batch (figure 1). The columns are `td_error` `[B]`, which becomes the new priorities, and `features` `[B, F]`,
        the features of `obs` for the actor's loss.
        """
        view = self.see(nets, rows)
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
        features = torch.cat([view.learned, view.next_obs])  # [2 B, F]
        action = torch.cat([rows["action"], next_action])  # [2 B, A]
        q, next_q = nets.critic(features, action, batch_statistics=True).chunk(2, -1)  # [2, B] each
        target = rows["reward"] + rows["discount"] * (next_q.detach().amin(0) - cost)
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": q.mean()}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Return the smaller value of the two critics, `[B]`. The critics normalise with the running statistics."""
        value: Tensor = critic(features, action).amin(0)
        return value
