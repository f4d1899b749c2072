"""V-MPO (Song et al. 2019, "On-Policy Maximum a Posteriori Policy Optimization", arXiv 1909.12238).

V-MPO fits the policy to the better half of a rollout's actions, weighted by exp(advantage / temperature) (E-step),
within a trust region around the policy at the start of the update (M-step). The temperature and the weights of the
trust regions are dual variables. A Gaussian has separate trust regions for its mean and its standard deviation.
"""

import math
from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.on_policy._actor import Policy as Policy
from drl_cli.algos.on_policy._actor_critic import ActorCritic, ActorCriticConfig
from drl_cli.algos.on_policy._base import Metrics
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses.critics import mean
from drl_cli.losses.distributions import Distribution
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Positive

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Options of V-MPO."""

    dual_lr: Positive
    temperature_start: Positive
    alpha_start: Positive
    epsilon_temperature: Positive
    epsilon_kl: Positive
    epsilon_std: Positive


class Algorithm(ActorCritic):
    """Learns actor, critic and the dual variables in a trainer."""

    config: Config

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.lrs = dict.fromkeys(("temperature", "alpha"), config.dual_lr)
        super().setup(config, spec)
        starts = {"temperature": config.temperature_start, "alpha": config.alpha_start}
        for name, start in starts.items():  # the dual variables are the softplus of these values
            self.params[name].flat.copy_(torch.tensor(start).expm1().log())
        self.temperature_gradients = Gradients(self.params, self.temperature_loss, self.context, "temperature")
        self.slope = torch.zeros_like(self.params["temperature"].flat)
        bounds = (config.epsilon_kl, config.epsilon_std)[: len(self.params["alpha"].flat)]
        self.bounds = torch.tensor(bounds, device=self.context.device)

    def extra_parts(self, config: Config) -> dict[str, int]:
        return {"temperature": 1, "alpha": 2 if self.action.kind == "box" else 1}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Store the present policy, which is the centre of the trust region."""
        self.keep_policy(rollout, features)

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        """Add the column `psi` `[N]`, the weights of the rows (E-step, eq. 3), and set `slope`.

        Only the half of the rows with the larger advantages, among the rows of all trainers, has a weight above 0. The
        mean weight of all rows is 1. `slope` is the gradient of the temperature's loss.
        """
        super().before_epoch(rollout)
        advantage = rollout.rows["advantage"]
        all_advantages = self.context.group.gather(advantage)
        best = all_advantages.topk(max(1, len(all_advantages) // 2)).values
        temperature = softplus(self.params["temperature"].flat)
        psi = (advantage / temperature - (best / temperature).logsumexp(0)).exp() * len(all_advantages)
        rollout.rows["psi"] = torch.where(advantage >= best[-1], psi, 0.0)
        self.temperature_gradients(best)
        self.slope.copy_(self.params["temperature"].grad)  # in place, because a compiled step reads this tensor

    def temperature_loss(self, nets: Nets, best: Tensor, noise: None) -> tuple[Tensor, Metrics]:
        """Return the loss of the temperature, given the larger half of the advantages (eq. 4)."""
        temperature = softplus(nets.temperature).sum()
        log_mean = (best / temperature).logsumexp(0) - math.log(len(best))
        return temperature * (self.config.epsilon_temperature + log_mean), {}

    def policy_loss(self, nets: Nets, policy: Distribution, rows: Batch) -> tuple[Tensor, Metrics]:
        """Return the sum of three losses, and metrics (M-step, eq. 2 and 5).

        The losses are the weighted negative log-likelihood of the actions, the loss of the trust regions, and a linear
        loss that gives the temperature the gradient `slope` in every minibatch of an epoch.
        """
        weight = rows.get("weight")
        policy_loss = -mean(rows["psi"] * policy.log_prob(rows["action"]), weight)
        kl = torch.stack([mean(part, weight) for part in self.kept_policy(rows).kl_parts(policy)])
        alpha = softplus(nets.alpha)
        trust_loss = (alpha * (self.bounds - kl.detach()) + alpha.detach() * kl).sum()
        temperature_loss = (nets.temperature * self.slope).sum()
        metrics = {"policy_loss": policy_loss, "entropy": mean(policy.entropy_at(rows["action"]), weight)}
        metrics |= dict(zip(("kl", "kl_std"), kl.unbind(), strict=False)) | {"alpha": alpha.mean()}
        metrics |= {"temperature": softplus(nets.temperature).mean()}
        return policy_loss + trust_loss + temperature_loss, metrics


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return torch.nn.functional.softplus(x)
