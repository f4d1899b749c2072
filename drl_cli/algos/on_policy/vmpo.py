"""V-MPO (Song et al. 2019, "On-Policy Maximum a Posteriori Policy Optimization", arXiv 1909.12238).

Each epoch of an update has two steps. The E-step takes the half of the rollout's actions with the larger advantages,
and weights each action in proportion to exp(advantage / temperature). The M-step maximises the weighted log-likelihood
of these actions. A trust region bounds the KL divergence from the policy before the update. A Gaussian policy has one
trust region for its mean and another for its standard deviation. The temperature, and the weights alpha of the trust
regions, are learned dual variables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.algos.epochs import Epochs, Minibatches
from drl_cli.algos.on_policy.ppo import actor_critic, check, columns, distribution, old_policy, policy
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.api import torch

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True
__all__ = ["Algorithm", "Config", "check", "columns", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of V-MPO, which conf/algo/vmpo.yaml explains."""

    lr: drl.Positive
    n_step: Literal[1]
    epochs: drl.Count
    minibatch_size: drl.Count | None
    seq_len: drl.Count
    gae_lambda: drl.Fraction
    value_coef: drl.Positive
    squash: bool
    dual_lr: drl.Positive
    temperature_start: drl.Positive
    alpha_start: drl.Positive
    epsilon_temperature: drl.Positive
    epsilon_kl: drl.Positive
    epsilon_std: drl.Positive


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name, and the dual variables before softplus, which keeps them positive."""
    temperature, alpha = (math.log(math.expm1(x)) for x in (config.temperature_start, config.alpha_start))
    duals = {"temperature": drl.Scalar(temperature), "alpha": drl.Vector(len(bounds(config, spec)), alpha)}
    return actor_critic(network, spec) | duals


def bounds(config: Any, spec: drl.EnvSpec) -> tuple[float, ...]:
    """Return the largest KL divergence of each trust region."""
    return (config.epsilon_kl, config.epsilon_std) if spec.action.kind == "box" else (config.epsilon_kl,)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + exp(x))."""
    return torch.nn.functional.softplus(x)


class Algorithm(drl.Algorithm):
    """Learns actor, critic and dual variables from rollouts (algorithm 1)."""

    policy_parts = ("encoder", "actor", "log_std")
    rates = {"temperature": "dual_lr", "alpha": "dual_lr"}
    is_one_step = has_noise = False

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context):
        super().__init__(config, network, spec, seed, context)
        self.minibatches = Minibatches(self, self.loss)
        self.temperature_gradients = drl.Gradients(self.params, self.temperature_loss, self.context, "temperature")
        self.temperature_grad = torch.zeros_like(self.params["temperature"].flat)  # of the last E-step
        self.bounds = torch.tensor(bounds(config, spec), device=context.device)

    def temperature_loss(self, nets: Any, best: torch.Tensor, noise: None) -> tuple[torch.Tensor, drl.Metrics]:
        """Return eta (epsilon + log(mean(exp(best / eta)))), a scalar, and {}. `best` are the larger advantages."""
        temperature = softplus(nets.temperature())
        log_mean = (best / temperature).logsumexp(0) - math.log(len(best))
        return temperature * (self.config.epsilon_temperature + log_mean), {}

    def e_step(self, rollout: EncodedRollouts) -> None:
        """Store the weights psi of the actions (eq. 3), and the gradient of the temperature's loss (eq. 4).

        The half of the transitions with the larger advantages, of all trainers, has weights proportional to
        exp(advantage / temperature). Transitions that tie with the smallest advantage of this half have a weight, too.
        All other weights are 0. Without such ties, the mean of all weights is 1; with ties, it is larger.
        """
        advantage = rollout.rows["advantage"]
        all_advantages = self.context.group.gather(advantage)
        best = all_advantages.topk(max(1, len(all_advantages) // 2)).values  # sorted, the largest first
        with torch.no_grad():
            temperature = softplus(self.nets.temperature())
            log_psi = advantage / temperature - (best / temperature).logsumexp(0)
            psi = log_psi.exp() * len(all_advantages)
            rollout.rows["psi"] = torch.where(advantage >= best[-1], psi, 0.0)  # best[-1] is the smallest of the best
            self.temperature_gradients(best)  # writes `grad`
            self.temperature_grad.copy_(self.params["temperature"].grad)  # in place: a compiled step reads this tensor

    def loss(
        self, nets: Any, x: torch.Tensor, rows: drl.Batch, masks: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, drl.Metrics]:
        """Return the loss of the M-step on a minibatch, and metrics. `x` `[M, F]` are features, `masks` of dropout."""
        config, weight, mask = self.config, rows.get("weight"), rows.get("action_mask")
        pi = distribution(config, self.spec, nets.actor(x), nets.log_std(), mask)
        old = distribution(config, self.spec, rows["old_out"], rows.get("old_log_std"), mask)

        # policy: -psi log pi(a|s)    (eq. 2)
        policy_loss = -drl.losses.mean(rows["psi"] * pi.log_prob(rows["action"]), weight)
        # trust regions: alpha (epsilon - KL), which trains alpha, and alpha KL, which trains the policy    (eq. 5)
        kl = torch.stack([drl.losses.mean(each, weight) for each in old.kl_parts(pi)])
        alpha = softplus(nets.alpha())
        trust_loss = (alpha * (self.bounds - kl.detach()) + alpha.detach() * kl).sum()
        # temperature: a term with the gradient that the E-step has computed    (eq. 4)
        temperature_loss = (nets.temperature() * self.temperature_grad).sum()
        metrics = {"entropy": drl.losses.mean(pi.entropy_at(rows["action"]), weight)}
        metrics |= dict(zip(("kl", "kl_std"), kl.unbind(), strict=False))  # a softmax has no `kl_std`
        metrics |= {"alpha": alpha.mean(), "temperature": softplus(nets.temperature())}

        value_loss = drl.losses.mean(0.5 * (nets.critic(x, masks).squeeze(-1) - rows["target"]).square(), weight)
        if self.stream is not None:
            reward_error = nets.reward_critic(x).squeeze(-1) - rows["reward_target"]
            value_loss = value_loss + drl.losses.mean(0.5 * reward_error.square(), weight)
        loss = policy_loss + trust_loss + temperature_loss + config.value_coef * value_loss
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, **metrics}

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, lambda_, rollout = self.nets, self.config.gae_lambda, self.minibatches.rollout(batch)
        rows, cut, epochs = rollout.rows, batch["cut"], Epochs(self.minibatches, rollout)

        with torch.no_grad():
            x, next_x = rollout.features()
            value, next_value = (nets.critic(each).squeeze(-1) for each in (x, next_x))
            advantage = drl.losses.gae(batch["reward"], batch["discount"], value, next_value, cut, lambda_)
            rows["target"] = advantage + value
            unexplained = advantage.var(correction=0) / rows["target"].var(correction=0).clamp_min(1e-8)
            metrics = {"explained_variance": 1.0 - unexplained}
            if self.stream is not None:
                rewards = self.stream.rewards(batch)
                value, next_value = (nets.reward_critic(each).squeeze(-1) for each in (x, next_x))
                bonus, rows["reward_target"] = self.stream.advantages(rewards, value, next_value, cut, lambda_)
                advantage = advantage + bonus
            rows["advantage"] = advantage
            rows.update(old_policy(nets, x, self.spec))

        for _ in range(self.config.epochs):
            self.e_step(rollout)
            epochs.run()  # the M-step: a gradient step with each minibatch
        if epochs.done and self.stream is not None:
            metrics["reward_loss"] = self.stream.learn(batch, self.optimizer)
        return epochs.update(metrics)
