"""D4PG (Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", arXiv 1804.08617).

D4PG is DDPG whose critic predicts a categorical distribution of the return, with n-step rewards and many workers.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.continuous.actors import DeterministicPolicy, NoiseConfig, check_network, check_support, make_network
from drl_cli.losses.critics import categorical_critic
from drl_cli.losses.distributional import cross_entropy, project
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Positive

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(NoiseConfig):
    """Options of D4PG."""

    n_step: Count = 5
    lr: Positive = 1e-4
    critic_lr: Positive = 1e-4
    tau: Fraction = 0.005
    atoms: Count = 51
    v_min: float = -150.0
    v_max: float = 150.0

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(BaseAlgorithm):
    """Learns actor and critic in a trainer."""

    policy_parts = ("actor",)

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        check_network(config.name, network)
        self.config, size = config, spec.action.size
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=context.device)
        actor, critic = make_network(network, spec, size), make_network(network, spec, config.atoms, size)
        self.params = Params(context, actor=actor, critic=critic)
        self.params.target("actor")
        self.params.target("critic")
        self.optimizer = Optimizer(self.params, {"actor": config.lr, "critic": config.critic_lr}, context)
        self.gradients = Gradients(self.params, self.loss, context)

    def loss(self, nets: Nets, batch: Batch, noise: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critic's cross-entropy (algorithm 1) minus the mean return of the actor's actions (eq. 4)."""
        obs, next_obs, support = batch["obs"], batch["next_obs"], self.support
        with torch.no_grad():
            next_probs = nets.target.critic(next_obs, nets.target.actor(next_obs).tanh()).softmax(-1)
            target = project(next_probs, batch["reward"], batch["discount"], support)
        logits = nets.critic(obs, batch["action"])
        critic_loss = categorical_critic(logits, target, batch.get("weight"))
        # The projection clips infinite rewards and would hide them. Adding 0 times the reward makes the loss NaN.
        critic_loss = critic_loss + 0.0 * batch["reward"].sum()
        actor_loss = -(nets.frozen.critic(obs, nets.actor(obs).tanh()).softmax(-1) @ support).mean()
        q, divergence = logits.softmax(-1) @ support, cross_entropy(logits, target)[2].clamp(min=0.0)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": q.mean()}
        return critic_loss + actor_loss, metrics | {"divergence": divergence}

    def update(self, batch: Batch, counts: Counts) -> Update:
        loss, found = self.gradients(batch)
        self.optimizer.step(loss)
        self.params.follow(self.config.tau)
        metrics = dict(found)
        return Update(metrics, metrics.pop("divergence"))
