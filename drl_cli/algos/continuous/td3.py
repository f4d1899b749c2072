"""TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv 1802.09477).

TD3 has a deterministic actor and twin critics. Three changes of DDPG reduce the overestimation of values: the minimum
of both target critics, noise on the target's action, and an actor that is updated less often than the critics.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.continuous.actors import DeterministicPolicy, NoiseConfig, check_network, make_network
from drl_cli.losses.critics import twin_critics
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(NoiseConfig):
    """Options of TD3."""

    lr: Positive = 3e-4
    tau: Fraction = 0.005
    target_noise: NonNegative = 0.2
    noise_clip: NonNegative = 0.5
    actor_period: Count = 2


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(BaseAlgorithm):
    """Learns actor and critics in a trainer."""

    policy_parts = ("actor",)

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        check_network(config.name, network)
        self.config, self.context, self.size = config, context, spec.action.size
        actor, critic = make_network(network, spec, self.size), make_network(network, spec, 1, self.size, ensemble=2)
        self.params = Params(context, actor=actor, critic=critic)
        self.params.target("actor")
        self.params.target("critic")
        self.noise = self.params.generator("noise", seed + 1)
        self.optimizer = Optimizer(self.params, {"actor": config.lr, "critic": config.lr}, context)
        self.critic_gradients = Gradients(self.params, self.critic_loss, context, "critic")
        self.actor_gradients = Gradients(self.params, self.actor_loss, context, "actor")

    def critic_loss(self, nets: Nets, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of both critics (algorithm 1), and |TD error| `[B]`."""
        config, next_obs = self.config, batch["next_obs"]
        with torch.no_grad():
            smoothing = (config.target_noise * noise).clamp(-config.noise_clip, config.noise_clip)
            next_action = (nets.target.actor(next_obs).tanh() + smoothing).clamp(-1.0, 1.0)
            next_q = nets.target.critic(next_obs, next_action).squeeze(-1).amin(0)
            target = batch["reward"] + batch["discount"] * next_q
        q = nets.critic(batch["obs"], batch["action"]).squeeze(-1)  # [2, B]
        loss = twin_critics(q, target, batch.get("weight"))
        return loss, {"critic_loss": loss, "q_mean": q.mean(), "td_error": (q - target).abs().mean(0)}

    def actor_loss(self, nets: Nets, batch: Batch, noise: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the first critic's value of the actor's actions."""
        loss = -nets.frozen.critic(batch["obs"], nets.actor(batch["obs"]).tanh(), first=1).mean()
        return loss, {"actor_loss": loss}

    def update(self, batch: Batch, counts: Counts) -> Update:
        noise = self.context.randn(len(batch["reward"]), self.size, self.noise)
        loss, found = self.critic_gradients(batch, noise)
        self.optimizer.step(loss, parts=("critic",))
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        if counts.opt_steps % self.config.actor_period == 0:
            loss, found = self.actor_gradients(batch)
            self.optimizer.step(loss, parts=("actor",))
            self.params.follow(self.config.tau)
            metrics |= found
        return Update(metrics, td_error)
