"""AWAC (Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets", arXiv 2006.09359).

Twin critics learn Q of the actor's policy. The actor maximises the log-likelihood of the batch's actions, weighted by
exp(advantage / temperature). The advantage is Q(s, a) minus Q of an action that the actor samples. The same update
learns from a dataset and online.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.off_policy._actors import Random
from drl_cli.algos.offline._gaussian import GaussianPolicy, gaussian
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction, Positive

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of AWAC, which conf/algo/awac.yaml explains."""

    tau: Fraction
    temperature: Positive
    max_weight: Positive


class Policy(GaussianPolicy):
    """The Gaussian actor with the mean tanh(f(s))."""


class Algorithm(Learner):
    """Trains AWAC's actor and twin critics."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.size = spec.action.size
        actor, self.critic = self.mlp(self.size), self.critics(1, self.size, ensemble=2)
        parts: dict[str, Any] = {"actor": actor, "log_std": self.size, "critic": self.critic}
        self.build(policy=("actor", "log_std"), lr=config.lr, targets=("critic",), **parts)
        self.noise = self.params.generator("noise", self.seed + 1)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critics and actor (algorithm 1), and a dict with metrics and `td_error`.

        `td_error` `[B]` is the mean |TD error| of both critics, for prioritized replay. `random` has dropout masks of
        the critics, and normal noise `action` `[B, 2 A]` for two sampled actions: in the state and in the next state.
        """
        config, view, valid = self.config, self.see(nets, rows), rows.get("valid_weight")  # `valid` is 0 for padding
        noise, next_noise = random["action"].chunk(2, -1)
        with torch.no_grad():
            next_action = gaussian(nets, view.next_obs).sample(next_noise).clamp(-1.0, 1.0)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)  # [2, B]
            target = rows["reward"] + rows["discount"] * next_q.amin(0)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        critic_loss = twin_critics(q, target, rows.get("weight"))

        policy = gaussian(nets, view.obs)
        with torch.no_grad():
            own_action = policy.sample(noise).clamp(-1.0, 1.0)
            value = nets.critic(view.obs, own_action, random["masks"]).squeeze(-1).amin(0)
            advantage = q.amin(0) - value
            action_weight = (advantage / config.temperature).exp().clamp(max=config.max_weight)
        actor_loss = -mean(action_weight * policy.log_prob(rows["action"]), valid)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": mean(q, valid)}
        metrics |= {"advantage": mean(advantage, valid), "td_error": (q - target).abs().mean(0)}
        return critic_loss + actor_loss, metrics

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        num = len(rows["reward"])
        noise = self.context.randn(num, 2 * self.size, self.noise)
        random: Random = {"action": noise, **self.critic_masks(self.critic, num, self.noise)}
        loss, found = self.gradients(rows, random)
        return self.finish(loss, found, batch)
