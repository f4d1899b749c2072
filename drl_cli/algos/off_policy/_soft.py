"""The base class of CrossQ and XQC: SAC (Haarnoja et al. 2018, arXiv 1812.05905) with batch norm in the critics."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.off_policy._actors import Random, squashed
from drl_cli.algos.steps import per_sequence
from drl_cli.losses.critics import mean
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer_config import Part
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Positive

if TYPE_CHECKING:
    from drl_cli.networks.mlp_module import MLP


@dataclass(frozen=True, kw_only=True)
class SoftConfig(LearnerConfig):
    """The options of SAC.

    The entropy temperature alpha starts at `initial_alpha` and learns with the rate `alpha_lr`. `actor_period` is the
    number of critic updates for each update of actor and alpha.
    """

    alpha_lr: Positive
    initial_alpha: Positive
    target_entropy: float | None
    actor_period: Count


class SoftAlgorithm(Learner):
    """Learns an actor, critics, and the entropy temperature alpha.

    A subclass defines the critics, their loss, and the value of an action, which the actor maximises. The loss of the
    critics trains the encoder. The actor reads the same features, but the actor's loss does not train the encoder.
    """

    has_own_weights = False
    has_targets = True
    """Whether the critics have target networks."""
    betas: tuple[float, float] | None = None
    """Adam's betas for actor and critics. None stands for the betas in the optimizer's options."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        self.size = spec.action.size
        self.target_entropy = -float(self.size) if config.target_entropy is None else config.target_entropy
        self.critic: Any = self.make_critics()
        actor = self.mlp(2 * self.size)
        self.build(
            policy=("actor",),
            lr=Part(config.lr, betas=self.betas),
            lrs={"log_alpha": config.alpha_lr},
            targets=("critic",) if self.has_targets else (),
            actor=actor,
            critic=self.critic,
            log_alpha=1,  # a vector of size 1
        )
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))
        self.noise = self.params.generator("noise", self.seed + 1)
        self.critic_parts = (*self.encoder.parts, "critic")
        self.critic_gradients = Gradients(self.params, self.critic_loss, self.context, *self.critic_parts)
        self.actor_gradients = Gradients(self.params, self.actor_loss, self.context, "actor", "log_alpha")

    @abstractmethod
    def make_critics(self) -> "MLP | Any":  # Any: another module of features and actions
        """Make and return the critics, as one module. Loss functions find it under the name `nets.critic`."""

    @abstractmethod
    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar loss of the critics, and a dict with metrics and columns.

        The metrics are the scalars `critic_loss` and `q_mean`. The columns are `td_error` `[B]`, which becomes the new
        priorities, `features` `[B, F]`, the features of `obs`, and all other columns that the loss of the actor reads.
        """

    @abstractmethod
    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Return the values `[B]` of actions `[B, A]`, such as the smaller value of two critics.

        The actor learns to choose actions with large values.
        """

    def draw(self, rows: int) -> Random:
        """Draw the random numbers of one loss function for a batch of `rows` rows."""
        action = self.context.randn(rows, self.size, self.noise)
        return {"action": action, **self.critic_masks(self.critic, rows, self.noise)}

    def next_action(self, nets: Nets, features: Tensor, random: Random) -> tuple[Tensor, Tensor]:
        """Sample actions in the next states, whose `features` are `[B, F]`.

        Return the actions `[B, A]`, and alpha times their log-probabilities, `[B]`.
        """
        action, log_prob = squashed(nets.actor(features)).sample_log_prob(random["action"])
        return action, nets.log_alpha.detach().exp() * log_prob

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of actor and temperature, and a dict with metrics.

        The loss of the actor is the mean of alpha log pi(a|s) - Q(s, a) over actions a that the actor samples (eq. 7).
        The loss of the temperature is the mean of log alpha * (entropy - target entropy). Eq. 18 has the factor alpha
        in place of log alpha. With log alpha, the size of the gradient does not depend on alpha.
        """
        features, weight = rows["features"], rows.get("valid_weight")
        action, log_prob = squashed(nets.actor(features)).sample_log_prob(random["action"])
        alpha = nets.log_alpha.detach().exp()
        cost = alpha * log_prob
        value = self.value(nets.frozen.critic, features, action, random)
        actor_loss = mean(cost - value, weight)
        missing_entropy = mean(log_prob.detach(), weight) + self.target_entropy  # target minus present entropy
        alpha_loss = -(nets.log_alpha * missing_entropy).sum()
        metrics = {"actor_loss": actor_loss, "alpha": alpha.squeeze(), "entropy": -mean(log_prob, weight)}
        return actor_loss + alpha_loss, metrics

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        trains_actor = counts.opt_steps % self.config.actor_period == 0
        # A loss that is not finite ends the update at an optimizer step (trainer.on_nonfinite=skip). All random numbers
        # are drawn before the first step, so that such an update draws as many of them as any other.
        num = len(rows["reward"])
        critic_random, actor_random = self.draw(num), self.draw(num) if trains_actor else {}
        loss, found = self.critic_gradients(rows, critic_random)
        columns = {name: value for name, value in found.items() if value.ndim > 0}
        metrics = {name: value for name, value in found.items() if value.ndim == 0}
        rows |= columns  # for the loss of the actor
        self.optimizer.step(loss, parts=self.critic_parts)
        if self.has_targets:
            self.params.follow(self.config.tau)
        if trains_actor:
            actor_loss, actor_metrics = self.actor_gradients(rows, actor_random)
            metrics |= actor_metrics
            self.optimizer.step(actor_loss, parts=("actor", "log_alpha"))
        return Update(metrics, priorities=per_sequence(columns["td_error"], batch))
