"""MPO (Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation", arXiv 1806.06920), with one-step targets.

MPO first finds better probabilities for sampled actions (E-step), and then fits the actor to them within a trust region
(M-step). Mean and standard deviation have separate trust regions (Abdolmaleki et al. 2018b, "Relative Entropy
Regularized Policy Iteration", arXiv 1812.02256).
"""

import math
from dataclasses import dataclass

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.continuous.actors import SquashedActorPolicy, check_network, make_network, squashed
from drl_cli.losses.critics import mse
from drl_cli.losses.distributions import Gaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec, map_parts
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Positive

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(AlgoConfig):
    """Options of MPO."""

    lr: Positive = 3e-4
    dual_lr: Positive = 1e-2
    samples: Count = 20
    target_period: Count = 100
    epsilon: Positive = 0.1
    epsilon_mean: Positive = 2.5e-3
    epsilon_std: Positive = 1e-5


class Policy(SquashedActorPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(BaseAlgorithm):
    """Learns actor, critic and the three dual variables in a trainer."""

    policy_parts = ("actor",)

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        check_network(config.name, network)
        self.config, self.context, self.size = config, context, spec.action.size
        actor, critic = make_network(network, spec, 2 * self.size), make_network(network, spec, 1, self.size)
        self.params = Params(context, actor=actor, critic=critic, duals=3)
        start = torch.tensor((1.0, 10.0, 100.0))  # temperature, and the weights of both trust regions
        self.params["duals"].flat.copy_(start + (-(-start).expm1()).log())  # their softplus is `start`
        self.params.target("actor")
        self.params.target("critic")
        self.noise = self.params.generator("noise", seed + 1)
        lrs = {"actor": config.lr, "critic": config.lr, "duals": config.dual_lr}
        self.optimizer = Optimizer(self.params, lrs, context)
        self.gradients = Gradients(self.params, self.loss, context)

    def loss(self, nets: Nets, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the critic's loss at `obs` and the losses of actor and dual variables at `next_obs`."""
        config, next_obs = self.config, batch["next_obs"]
        temperature, mean_weight, std_weight = torch.nn.functional.softplus(nets.duals).unbind()
        with torch.no_grad():
            old = squashed(nets.target.actor(next_obs)).inner
            drawn = old.mean + old.log_std.exp() * noise.view(len(noise), -1, self.size).transpose(0, 1)  # [S, B, A]
            repeated = map_parts(lambda x: x.repeat(config.samples, *[1] * (x.ndim - 1)), next_obs)
            next_q = nets.target.critic(repeated, drawn.flatten(0, 1).tanh()).view(config.samples, -1)  # [S, B]
            target = batch["reward"] + batch["discount"] * next_q.mean(0)
        q = nets.critic(batch["obs"], batch["action"]).squeeze(-1)
        critic_loss = mse(q - target, batch.get("weight"))

        # E-step: weights of the sampled actions, and the dual of the temperature (eq. 4 and 8).
        weights = (next_q / temperature.detach()).softmax(0)
        likelihood = (next_q / temperature).logsumexp(0).mean() - math.log(config.samples)
        temperature_loss = temperature * (config.epsilon + likelihood)

        # M-step: the weighted likelihood of the sampled actions, for the mean and for the deviation (2018b, eq. 11).
        new = squashed(nets.actor(next_obs)).inner
        by_mean, by_std = Gaussian(new.mean, old.log_std), Gaussian(old.mean, new.log_std)
        policy_loss = -(weights * (by_mean.log_prob(drawn) + by_std.log_prob(drawn))).sum(0).mean()
        mean_kl, std_kl = old.kl(by_mean).mean(), old.kl(by_std).mean()
        penalty = mean_weight.detach() * mean_kl + std_weight.detach() * std_kl
        dual_loss = mean_weight * (config.epsilon_mean - mean_kl.detach())
        dual_loss = dual_loss + std_weight * (config.epsilon_std - std_kl.detach())
        metrics = {"critic_loss": critic_loss, "actor_loss": policy_loss, "q_mean": q.mean()}
        metrics |= {"temperature": temperature, "mean_kl": mean_kl, "std_kl": std_kl, "entropy": new.entropy().mean()}
        loss = critic_loss + policy_loss + penalty + temperature_loss + dual_loss
        return loss, metrics | {"td_error": (q - target).abs()}

    def update(self, batch: Batch, counts: Counts) -> Update:
        noise = self.context.randn(len(batch["reward"]), self.config.samples * self.size, self.noise)
        loss, found = self.gradients(batch, noise)
        self.optimizer.step(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:
            self.params.follow(1.0)
        metrics = dict(found)
        return Update(metrics, metrics.pop("td_error"))
