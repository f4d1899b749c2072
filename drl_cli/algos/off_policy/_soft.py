"""The base of SAC (Haarnoja et al. 2018, arXiv 1812.05905) and of the variants of SAC with other critics."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig, by_step
from drl_cli.algos.off_policy._actors import Random, squashed
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
    """Options of SAC and of all its variants."""

    alpha_lr: Positive
    initial_alpha: Positive
    target_entropy: float | None
    actor_period: Count


class SoftAlgorithm(Learner):
    """Learns actor, critics and temperature. A subclass defines the critics, their loss and the value of an action.

    Only the critics' loss trains the encoder. The actor reads the same features, but its loss sends no gradient to the
    encoder.
    """

    has_own_weights = False
    has_targets = True
    """Whether the critics have target networks."""
    steps_at_once = False
    """Whether one optimizer step changes critics and actor together. If False, the critics' step comes first."""
    actor_outputs = 2
    """Number of the actor's outputs for each discrete action or each dimension of a box action."""
    samples_actions = True
    """Whether the losses sample actions. If False, only dropout needs random numbers."""
    betas: tuple[float, float] | None = None
    """Adam's betas for actor and critics. None stands for the betas in the optimizer's options."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        self.size = spec.action.size
        self.target_entropy = -float(self.size) if config.target_entropy is None else config.target_entropy
        # `has_own_weights` decides whether actor or critics draw first, so that a seed gives the same run as before.
        actor = self.mlp(self.actor_outputs * self.size) if self.has_own_weights else None
        self.critic: Any = self.make_critics()
        self.build(
            ("actor",),
            Part(config.lr, betas=self.betas),
            self.rates(config),
            targets=("critic",) if self.has_targets else (),
            actor=actor or self.mlp(self.actor_outputs * self.size),
            critic=self.critic,
            log_alpha=1,
        )
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))
        draws = self.samples_actions or self.network.dropout > 0
        self.noise = self.params.generator("noise", self.seed + 1) if draws else self.init
        self.critic_parts = (*self.encoder.parts, "critic")
        self.critic_gradients = Gradients(self.params, self.critic_loss, self.context, *self.critic_parts)
        self.actor_gradients = Gradients(self.params, self.actor_loss, self.context, "actor", "log_alpha")

    def rates(self, config: Any) -> dict[str, float]:
        """Return the learning rates of all parts that do not learn with `config.lr`, by part."""
        return {"log_alpha": config.alpha_lr}

    @abstractmethod
    def make_critics(self) -> "MLP | Any":  # Any: another module of features and actions
        """Return new critics. They become the part `critic`."""

    @abstractmethod
    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the critics, and a dict with metrics and columns.

        The metrics are `critic_loss` and `q_mean`. The columns are `td_error` `[B]`, `features` `[B, F]` of `obs`, and
        all other columns that the actor's loss reads.
        """

    @abstractmethod
    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Combine the critics' values of actions `[B, A]` into the value `[B]` that the actor maximises."""

    def draw(self, rows: int) -> Random:
        """Return the random numbers of one loss function for `rows` rows."""
        action = self.context.randn(rows, self.size, self.noise)
        return {"action": action, **self.critic_masks(self.critic, rows, self.noise)}

    def draws(self, rows: int, trains_actor: bool) -> tuple[Random, Random]:
        """Return the random numbers of the critics' loss and of the actor's loss ({} if the actor is not trained)."""
        return self.draw(rows), self.draw(rows) if trains_actor else {}

    def next_action(self, nets: Nets, features: Tensor, random: Random) -> tuple[Tensor, Tensor]:
        """Sample actions `[B, A]` in the next states; return them, and alpha times their log-probabilities `[B]`."""
        action, log_prob = squashed(nets.actor(features)).sample_log_prob(random["action"])
        return action, nets.log_alpha.detach().exp() * log_prob

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the actor, alpha log pi(a|s) - Q(s, a), and the loss of the temperature (eq. 17, 18)."""
        features, weight = rows["features"], rows.get("valid_weight")
        action, log_prob = squashed(nets.actor(features)).sample_log_prob(random["action"])
        alpha = nets.log_alpha.detach().exp()
        actor_loss = mean(alpha * log_prob - self.value(nets.frozen.critic, features, action, random), weight)
        alpha_loss = -(nets.log_alpha * (mean(log_prob.detach(), weight) + self.target_entropy)).sum()
        metrics = {"actor_loss": actor_loss, "alpha": alpha.squeeze(), "entropy": -mean(log_prob, weight)}
        return actor_loss + alpha_loss, metrics

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        trains_actor = counts.opt_steps % self.config.actor_period == 0
        # All random numbers are drawn before the first step, so that a skipped update draws as many as any other.
        random, actor_random = self.draws(len(rows["reward"]), trains_actor)
        loss, found = self.critic_gradients(rows, random)
        columns = {name: value for name, value in found.items() if value.ndim > 0}
        metrics = {name: value for name, value in found.items() if value.ndim == 0}
        rows |= columns
        if trains_actor and self.steps_at_once:
            actor_loss, found = self.actor_gradients(rows, actor_random)
            self.optimizer.step(loss, actor_loss)
        else:
            self.optimizer.step(loss, parts=self.critic_parts)
        if self.has_targets:
            self.params.follow(self.config.tau)
        if trains_actor and not self.steps_at_once:
            actor_loss, found = self.actor_gradients(rows, actor_random)
            self.optimizer.step(actor_loss, parts=("actor", "log_alpha"))
        return Update(metrics | (dict(found) if trains_actor else {}), by_step(columns["td_error"], batch))
