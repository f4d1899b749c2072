"""D4PG (Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", arXiv 1804.08617).

D4PG is DDPG whose critic predicts a categorical distribution of the return. D4PG learns from n-step returns that many
workers collect.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy import ddpg
from drl_cli.algos.off_policy._actors import DeterministicPolicy, NoiseConfig, Random, check_support
from drl_cli.losses.critics import categorical_critic, mean
from drl_cli.losses.distributional import cross_entropy, project
from drl_cli.optim.gradients import Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Positive

ACTIONS, TABLES = ddpg.ACTIONS, ddpg.TABLES


@dataclass(frozen=True, kw_only=True)
class Config(NoiseConfig):
    """The options of D4PG: those of DDPG, and the critic's support of `atoms` returns from `v_min` to `v_max`."""

    critic_lr: Positive
    tau: Fraction
    atoms: Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class Policy(DeterministicPolicy):
    """The deterministic actor of DDPG, with exploration noise."""


class Algorithm(ddpg.Algorithm):
    """Learns the actor and the critic from batches. Only the critic's outputs and the loss differ from DDPG."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.outputs = config.atoms
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)
        super().setup(config, spec)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critic and actor, and a dict of metrics and priorities, `td_error` `[B]`.

        The loss of the critic is the mean cross-entropy with the projected target (algorithm 1). The loss of the actor
        is minus the mean return that the critic predicts for the actor's actions (eq. 4). A priority is the divergence
        KL(target || critic's distribution).
        """
        view, valid, support = self.see(nets, rows), rows.get("valid_weight"), self.support
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            next_action = nets.target.actor(next_obs).tanh()
            next_probs = nets.target.critic(next_obs, next_action, random["target_masks"]).softmax(-1)
            target = project(next_probs, rows["reward"], rows["discount"], support)
        logits = nets.critic(view.learned, rows["action"], random["masks"])
        critic_loss = categorical_critic(logits, target, rows.get("weight"))
        obs = view.obs
        actor_logits = nets.frozen.critic(obs, nets.actor(obs).tanh(), random["masks"])
        actor_loss = -mean(actor_logits.softmax(-1) @ support, valid)
        q = logits.softmax(-1) @ support
        _loss, _gradient, divergence = cross_entropy(logits, target)
        td_error = divergence.clamp(min=0.0)  # rounding can make a divergence negative
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": mean(q, valid)}
        return critic_loss + actor_loss, metrics | {"td_error": td_error}
