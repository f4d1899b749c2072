"""IQL (Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169).

IQL never evaluates an action that is not in the data. A value network learns an upper expectile of Q(s, a) over the
data's actions. Twin critics bootstrap from the value of the next state. The actor imitates the data's actions, with
weights that grow with the advantage.
"""

from dataclasses import dataclass

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.learner import Learner
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
class Config(AlgoConfig):
    """Options of IQL."""

    lr: Positive
    tau: Fraction
    expectile: Fraction
    beta: NonNegative
    max_weight: Positive


class Policy(GaussianPolicy):
    """The Gaussian actor."""


class Algorithm(Learner):
    """Learns actor, value and critics in a trainer."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        size = spec.action.size
        actor, value, self.critic = self.mlp(size), self.mlp(1), self.critics(1, size, ensemble=2)
        policy, targets = ("actor", "log_std"), ("critic",)
        self.build(policy, config.lr, None, targets, actor=actor, log_std=size, value=value, critic=self.critic)
        # Only dropout needs random numbers.
        self.noise = self.params.generator("noise", self.seed + 1) if self.network.dropout else self.init
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of value (eq. 5), critics (eq. 6) and actor (eq. 7), and a dict with metrics.

        The dict also has the priorities `td_error` `[B]`.
        """
        config, view = self.config, self.see(nets, rows)
        weight, valid = rows.get("weight"), rows.get("valid_weight")
        with torch.no_grad():
            target_features = self.see_target(nets, rows, view).obs
            target_q = nets.target.critic(target_features, rows["action"], random["target_masks"]).squeeze(-1).amin(0)
            target = rows["reward"] + rows["discount"] * nets.value(view.next_obs).squeeze(-1)
        advantage = target_q - nets.value(view.obs).squeeze(-1)
        value_loss = mean(expectile(advantage, config.expectile), weight)

        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        critic_loss = twin_critics(q, target, weight)

        action_weight = (config.beta * advantage.detach()).exp().clamp(max=config.max_weight)
        actor_loss = -mean(action_weight * gaussian(nets, view.obs).log_prob(rows["action"]), valid)
        metrics = {"critic_loss": critic_loss, "value_loss": value_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": mean(q, valid), "advantage": mean(advantage, valid)}
        return value_loss + critic_loss + actor_loss, metrics | {"td_error": (q - target).abs().mean(0)}

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        loss, found = self.gradients(rows, self.critic_masks(self.critic, len(rows["reward"]), self.noise))
        return self.finish(loss, found, batch)
