"""IQL (Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169).

IQL never evaluates an action that is not in the data. A value network learns V(s), an upper expectile of Q(s, a) over
the data's actions. Twin critics learn Q with the targets r + discount * V(s'). The actor maximises the log-likelihood
of the data's actions, weighted by exp(beta * advantage). The advantage is Q(s, a) - V(s).
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.off_policy._actors import Random
from drl_cli.algos.offline._gaussian import GaussianPolicy, gaussian
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.losses.value import expectile
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction, NonNegative, Positive

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of IQL, which conf/algo/iql.yaml explains."""

    tau: Fraction
    expectile: Fraction
    beta: NonNegative
    max_weight: Positive


class Policy(GaussianPolicy):
    """The Gaussian actor with the mean tanh(f(s))."""


class Algorithm(Learner):
    """Trains IQL's actor, value network and twin critics."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        size = spec.action.size
        actor, value, self.critic = self.mlp(size), self.mlp(1), self.critics(1, size, ensemble=2)
        parts: dict[str, Any] = {"actor": actor, "log_std": size, "value": value, "critic": self.critic}
        self.build(policy=("actor", "log_std"), lr=config.lr, targets=("critic",), **parts)
        # Only dropout needs random numbers. Without dropout, nothing is drawn from `self.init`.
        self.noise = self.params.generator("noise", self.seed + 1) if self.network.dropout else self.init
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of value (eq. 5), critics (eq. 6) and actor (eq. 7), and a dict.

        The dict has metrics and the priorities `td_error` `[B]`, the mean |TD error| of both critics. `random` has
        dropout masks of the critics and of their target networks.
        """
        config, view = self.config, self.see(nets, rows)
        weight, valid = rows.get("weight"), rows.get("valid_weight")  # importance weights; `valid` is 0 for padding
        with torch.no_grad():
            target_features = self.see_target(nets, rows, view).obs
            target_q = nets.target.critic(target_features, rows["action"], random["target_masks"]).squeeze(-1)  # [2, B]
            target = rows["reward"] + rows["discount"] * nets.value(view.next_obs).squeeze(-1)
        advantage = target_q.amin(0) - nets.value(view.obs).squeeze(-1)  # also the error of the value network
        value_loss = mean(expectile(advantage, config.expectile), weight)

        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        critic_loss = twin_critics(q, target, weight)

        action_weight = (config.beta * advantage.detach()).exp().clamp(max=config.max_weight)
        log_prob = gaussian(nets, view.obs).log_prob(rows["action"])
        actor_loss = -mean(action_weight * log_prob, valid)
        metrics = {"critic_loss": critic_loss, "value_loss": value_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": mean(q, valid), "advantage": mean(advantage, valid)}
        return value_loss + critic_loss + actor_loss, metrics | {"td_error": (q - target).abs().mean(0)}

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        masks = self.critic_masks(self.critic, len(rows["reward"]), self.noise)
        loss, found = self.gradients(rows, masks)
        return self.finish(loss, found, batch)
