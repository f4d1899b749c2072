"""DDPG (Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning", arXiv 1509.02971).

DDPG is Q-learning for continuous actions. One critic learns Q values, and the actor learns to choose the action with
the largest Q value.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner
from drl_cli.algos.off_policy._actors import DeterministicPolicy, NoiseConfig, Random
from drl_cli.losses.critics import mean, mse
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction, Positive

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(NoiseConfig):
    """The options of DDPG: the actor's learning rate and noise, `critic_lr`, and `tau` of the target networks."""

    critic_lr: Positive
    tau: Fraction


class Policy(DeterministicPolicy):
    """The deterministic actor of DDPG, with exploration noise."""


class Algorithm(Learner):
    """Learns the actor and the critic from batches."""

    has_own_weights = False

    outputs = 1
    """Number of the critic's outputs."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        size = spec.action.size
        actor, self.critic = self.mlp(size), self.critics(self.outputs, actions=size)
        # `lrs` is for the actor, and `lr` for the other networks: the critic and the encoder.
        lr, lrs, targets = config.critic_lr, {"actor": config.lr}, ("actor", "critic")
        self.build(policy=("actor",), lr=lr, lrs=lrs, targets=targets, actor=actor, critic=self.critic)
        # Only dropout needs random numbers. Without dropout, `self.init` stands in, which checkpoints do not save.
        self.noise = self.params.generator("noise", self.seed + 1) if self.network.dropout else self.init
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critic and actor, and a dict of metrics and priorities, `td_error` `[B]`.

        The loss of the critic is the mean squared Bellman error (eq. 4 and 5). The loss of the actor is minus the mean
        Q value of the actor's actions (eq. 6).
        """
        view, valid = self.see(nets, rows), rows.get("valid_weight")
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            next_action = nets.target.actor(next_obs).tanh()
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)
            target = rows["reward"] + rows["discount"] * next_q
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)
        critic_loss = mse(q - target, rows.get("weight"))
        obs = view.obs
        actor_q = nets.frozen.critic(obs, nets.actor(obs).tanh(), random["masks"]).squeeze(-1)
        actor_loss = -mean(actor_q, valid)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": mean(q, valid)}
        return critic_loss + actor_loss, metrics | {"td_error": (q - target).abs()}

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        masks = self.critic_masks(self.critic, len(rows["reward"]), self.noise)
        loss, found = self.gradients(rows, masks)
        return self.finish(loss, found, batch)
