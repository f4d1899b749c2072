"""The base of TQC, REDQ, DroQ, CrossQ and XQC: SAC (Haarnoja et al. 2018, arXiv 1812.05905) with other critics."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.continuous.actors import check_network, squashed
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.group import Context, Refused
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Positive

if TYPE_CHECKING:
    from torch import nn

Random = dict[str, Any]  # Any: a tensor, or a list of tensors
"""The random numbers of one loss, by name; `action` is normal noise `[B, A]`."""


@dataclass(frozen=True)
class SoftConfig(AlgoConfig):
    """Options of SAC that its descendants share."""

    lr: Positive = 3e-4
    alpha_lr: Positive = 3e-4
    initial_alpha: Positive = 1.0
    target_entropy: float | None = None
    actor_period: Count = 1


class SoftAlgorithm(BaseAlgorithm):
    """Learns actor, critics and temperature. A subclass defines the critics, their loss and the value of an action."""

    policy_parts = ("actor",)
    optimizer_class = Optimizer
    has_dropout = False
    has_batch_norm = False
    has_targets = True
    betas: tuple[float, float] | None = None
    """Adam's betas for actor and critics; None: those of the optimizer's options."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        check_network(config.name, network, self.has_dropout, self.has_batch_norm)
        if self.has_batch_norm and (num := context.group.size) > 1:
            raise Refused(f"trainer.num={num}: the batch statistics of {config.name} need all rows; say trainer.num=1")
        self.config, self.network, self.context, self.size = config, network, context, spec.action.size
        self.target_entropy = -float(self.size) if config.target_entropy is None else config.target_entropy
        actor, critic = self.make_networks(network, spec)
        self.params = Params(context, actor=actor, critic=critic, log_alpha=1)
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))
        if self.has_targets:
            self.params.target("critic")
        self.noise = self.params.generator("noise", seed + 1)
        part = Part(config.lr, betas=self.betas)
        lrs = {"actor": part, "critic": part, "log_alpha": config.alpha_lr}
        self.optimizer = self.optimizer_class(self.params, lrs, context)
        self.critic_gradients = Gradients(self.params, self.critic_loss, context, "critic")
        self.actor_gradients = Gradients(self.params, self.actor_loss, context, "actor", "log_alpha")

    @abstractmethod
    def make_networks(self, network: NetworkConfig, spec: EnvSpec) -> "tuple[nn.Module, nn.Module]":
        """Return the actor, with 2 outputs per dimension, and the critics."""

    def draw(self, rows: int) -> Random:
        """Return the random numbers that a loss of `rows` rows uses, by name; `action` `[rows, A]` is normal noise."""
        return {"action": self.context.randn(rows, self.size, self.noise)}

    @abstractmethod
    def critic_loss(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the critics, and the metrics `critic_loss`, `q_mean` and `td_error` `[B]`."""

    @abstractmethod
    def value(self, critic: Any, obs: Any, action: Tensor, random: Random) -> Tensor:  # Any: a network; see torso
        """Return the value `[B]` that the actor maximises, by these critics."""

    def next_action(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, Tensor]:
        """Return actions in the next states, and alpha times their log-probabilities `[B]`."""
        action, log_prob = squashed(nets.actor(batch["next_obs"])).sample_log_prob(random["action"])
        return action, nets.log_alpha.detach().exp() * log_prob

    def actor_loss(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the actor, alpha log pi(a|s) - Q(s, a), and the loss of the temperature (eq. 17, 18)."""
        action, log_prob = squashed(nets.actor(batch["obs"])).sample_log_prob(random["action"])
        alpha = nets.log_alpha.detach().exp()
        actor_loss = (alpha * log_prob - self.value(nets.frozen.critic, batch["obs"], action, random)).mean()
        alpha_loss = -(nets.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        metrics = {"actor_loss": actor_loss, "alpha": alpha.squeeze(), "entropy": -log_prob.mean()}
        return actor_loss + alpha_loss, metrics

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = len(batch["reward"])
        loss, found = self.critic_gradients(batch, self.draw(rows))
        self.optimizer.step(loss, parts=("critic",))
        if self.has_targets:
            self.params.follow(self.config.tau)
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        if counts.opt_steps % self.config.actor_period == 0:
            loss, found = self.actor_gradients(batch, self.draw(rows))
            self.optimizer.step(loss, parts=("actor", "log_alpha"))
            metrics |= found
        return Update(metrics, td_error)
