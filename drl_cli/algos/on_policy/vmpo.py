"""V-MPO (Song et al. 2019, "On-Policy Maximum a Posteriori Policy Optimization", arXiv 1909.12238).

Each epoch of an update has two steps. The E-step takes the half of the rollout's actions with the larger advantages,
and gives each action the weight exp(advantage / temperature). The M-step maximises the weighted log-likelihood of these
actions. A trust region bounds the KL divergence from the policy before the update. A Gaussian policy has one trust
region for its mean and another for its standard deviation. The temperature, and the weights alpha of the trust regions,
are learned dual variables.
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
    """Trains V-MPO's actor, critic and dual variables from rollouts."""

    config: Config

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.lrs = dict.fromkeys(("temperature", "alpha"), config.dual_lr)
        super().setup(config, spec)
        starts = {"temperature": config.temperature_start, "alpha": config.alpha_start}
        for name, start in starts.items():  # a dual variable is the softplus of its parameter, which keeps it positive
            inverse_softplus = torch.tensor(start).expm1().log()
            self.params[name].flat.copy_(inverse_softplus)
        self.temperature_gradients = Gradients(self.params, self.temperature_loss, self.context, "temperature")
        self.temperature_grad = torch.zeros_like(self.params["temperature"].flat)  # of the last E-step
        bounds = (config.epsilon_kl, config.epsilon_std) if spec.action.kind == "box" else (config.epsilon_kl,)
        self.bounds = torch.tensor(bounds, device=self.context.device)  # one for each value of alpha

    def extra_parts(self, config: Config) -> dict[str, int]:
        return {"temperature": 1, "alpha": 2 if self.action.kind == "box" else 1}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Store the distributions of the policy before the update, from which the trust region measures."""
        self.keep_policy(rollout, features)

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        """Make the E-step: store the weights of N transitions as the column `psi` `[N]` of `rollout.rows` (eq. 3).

        The half with the larger advantages, among the transitions of all trainers, has weights proportional to
        exp(advantage / temperature). All other weights are 0. The mean of all weights is 1, or more if the other half
        has advantages equal to the smallest in this half. Also compute the gradient of the temperature's loss, which
        the gradient steps of this epoch use.
        """
        super().before_epoch(rollout)
        advantage = rollout.rows["advantage"]
        all_advantages = self.context.group.gather(advantage)
        best = all_advantages.topk(max(1, len(all_advantages) // 2)).values  # sorted, the largest first
        temperature = softplus(self.params["temperature"].flat)
        log_psi = advantage / temperature - (best / temperature).logsumexp(0)
        psi = log_psi.exp() * len(all_advantages)
        rollout.rows["psi"] = torch.where(advantage >= best[-1], psi, 0.0)  # best[-1] is the smallest of the best
        self.temperature_gradients(best)  # writes `grad`
        self.temperature_grad.copy_(self.params["temperature"].grad)  # in place: a compiled step reads this tensor

    def temperature_loss(self, nets: Nets, best: Tensor, noise: None) -> tuple[Tensor, Metrics]:
        """Return the temperature's loss (a scalar, eq. 4), and {}. `best` has the larger half of the advantages.

        The loss is temperature * (epsilon_temperature + log(mean(exp(best / temperature)))).
        """
        temperature = softplus(nets.temperature).sum()  # the sum makes the tensor `[1]` a scalar
        log_mean = (best / temperature).logsumexp(0) - math.log(len(best))
        return temperature * (self.config.epsilon_temperature + log_mean), {}

    def policy_loss(self, nets: Nets, policy: Distribution, rows: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of the M-step on a minibatch (a scalar, eq. 2 and 5), and metrics.

        The loss has three terms: the negative log-likelihood of the actions, weighted by `psi`; the loss of the trust
        regions, which trains the policy and alpha; and a term whose gradient is the temperature's gradient of the
        E-step.
        """
        weight = rows.get("weight")
        policy_loss = -mean(rows["psi"] * policy.log_prob(rows["action"]), weight)
        kls = self.kept_policy(rows).kl_parts(policy)  # a Gaussian has two: of the mean, and of the standard deviation
        kl = torch.stack([mean(each, weight) for each in kls])
        alpha = softplus(nets.alpha)
        trust_loss = (alpha * (self.bounds - kl.detach()) + alpha.detach() * kl).sum()
        temperature_loss = (nets.temperature * self.temperature_grad).sum()
        metrics = {"policy_loss": policy_loss, "entropy": mean(policy.entropy_at(rows["action"]), weight)}
        metrics |= dict(zip(("kl", "kl_std"), kl.unbind(), strict=False))  # a softmax has no `kl_std`
        metrics |= {"alpha": alpha.mean(), "temperature": softplus(nets.temperature).mean()}
        return policy_loss + trust_loss + temperature_loss, metrics


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return torch.nn.functional.softplus(x)
