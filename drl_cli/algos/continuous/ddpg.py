"""DDPG (Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning", arXiv 1509.02971).

DDPG is Q-learning for continuous actions: the actor learns the action with the largest value of one critic.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.continuous.actors import DeterministicPolicy, NoiseConfig, check_network, make_network
from drl_cli.losses.critics import mse
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Fraction, Positive

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(NoiseConfig):
    """Options of DDPG."""

    lr: Positive = 3e-4
    critic_lr: Positive = 1e-3
    tau: Fraction = 0.005


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(BaseAlgorithm):
    """Learns actor and critic in a trainer."""

    policy_parts = ("actor",)

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        check_network(config.name, network)
        self.config, size = config, spec.action.size
        actor, critic = make_network(network, spec, size), make_network(network, spec, 1, size)
        self.params = Params(context, actor=actor, critic=critic)
        self.params.target("actor")
        self.params.target("critic")
        self.optimizer = Optimizer(self.params, {"actor": config.lr, "critic": config.critic_lr}, context)
        self.gradients = Gradients(self.params, self.loss, context)

    def loss(self, nets: Nets, batch: Batch, noise: None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critic's squared Bellman error (eq. 5) minus the value of the actor's actions (eq. 6)."""
        obs, next_obs = batch["obs"], batch["next_obs"]
        with torch.no_grad():
            next_q = nets.target.critic(next_obs, nets.target.actor(next_obs).tanh()).squeeze(-1)
            target = batch["reward"] + batch["discount"] * next_q
        q = nets.critic(obs, batch["action"]).squeeze(-1)
        critic_loss = mse(q - target, batch.get("weight"))
        actor_loss = -nets.frozen.critic(obs, nets.actor(obs).tanh()).mean()
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": q.mean()}
        return critic_loss + actor_loss, metrics | {"td_error": (q - target).abs()}

    def update(self, batch: Batch, counts: Counts) -> Update:
        loss, found = self.gradients(batch)
        self.optimizer.step(loss)
        self.params.follow(self.config.tau)
        metrics = dict(found)
        return Update(metrics, metrics.pop("td_error"))
