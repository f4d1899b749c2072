"""REPPO (Voelcker et al. 2025, "Relative Entropy Pathwise Policy Optimization", arXiv 2507.11019).

REPPO learns Q(s, a) from rollouts, without replay, and improves the policy with the gradient of Q with respect to the
action, as SAC does. The KL divergence from the policy before the update is bounded. The weight of the entropy and the
weight of the KL divergence are dual variables.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.continuous.actors import SquashedActorPolicy, check_network, check_support, make_network, squashed
from drl_cli.algos.rollout import PIECE, Rollouts
from drl_cli.algos.stacks import take
from drl_cli.losses.distributional import hl_gauss
from drl_cli.losses.returns import lambda_returns
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import NotFinite, Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

ACTIONS = ("box",)
TABLES = ("fifo-once",)


@dataclass(frozen=True, kw_only=True)
class Config(AlgoConfig):
    """Options of REPPO."""

    n_step: Literal[1]
    lr: Positive
    dual_lr: Positive
    td_lambda: Fraction
    epochs: Count
    minibatch_size: Count | None
    initial_alpha: Positive
    target_entropy: float | None
    initial_beta: Positive
    kl_bound: Positive
    prediction_coef: NonNegative
    atoms: Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class Policy(SquashedActorPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(BaseAlgorithm):
    """Learns actor, critic and both dual variables in a trainer."""

    policy_parts = ("actor",)
    is_one_step = False

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        from drl_cli.networks.predictive import PredictiveCritic  # imports torch

        check_network(config.name, network)
        self.config, self.context, self.size = config, context, spec.action.size
        self.target_entropy = -0.5 * self.size if config.target_entropy is None else config.target_entropy
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=context.device)
        actor = make_network(network, spec, 2 * self.size, last=0.01)
        critic = PredictiveCritic(network, spec, config.atoms)
        self.params = Params(context, actor=actor, critic=critic, log_alpha=1, log_beta=1)
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))
        self.params["log_beta"].flat.fill_(math.log(config.initial_beta))
        self.noise = self.params.generator("noise", seed + 1)
        self.shuffle = self.params.generator("shuffle", seed + 2, on_cpu=True)
        duals = dict.fromkeys(("log_alpha", "log_beta"), Part(config.dual_lr))
        part = Part(config.lr, max_norm=context.optimizer.max_norm)  # clips the actor's gradient and the critic's apart
        lrs = {"actor": part, "critic": part, **duals}
        self.optimizer = Optimizer(self.params, lrs, context)
        self.gradients = Gradients(self.params, self.loss, context)
        self.step_of = context.chained(self.step, self)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rollouts = Rollouts(batch, self.context.group)
        self.prepare(rollouts)
        size = self.config.minibatch_size or rollouts.num * self.context.group.size
        found: list[Mapping[str, Tensor]] = []
        skipped = 0
        for _ in range(self.config.epochs):
            rollouts.rows["noise"] = self.draw(rollouts)
            for minibatch in rollouts.minibatches(self.shuffle, size):
                if metrics := self.step_of(minibatch):
                    found.append(metrics)
                else:
                    skipped += 1
        means = {name: torch.stack([metrics[name] for metrics in found]).mean() for name in found[0]} if found else {}
        return Update(means, steps=len(found), skipped=skipped)

    def step(self, minibatch: Any) -> Mapping[str, Tensor]:
        """Make one gradient update from a minibatch `[M, ...]`; return metrics, or {} if the update was skipped."""
        loss, metrics = self.gradients(minibatch)
        try:
            self.optimizer.step(loss, parts=self.gradients.parts)
        except NotFinite:
            return {}
        return metrics

    def draw(self, rollouts: Rollouts) -> Tensor:
        """Return normal noise for one action in every row, `[N, A]`."""
        return self.context.randn(rollouts.num, self.size, self.noise)

    def prepare(self, rollouts: Rollouts) -> None:
        """Add columns from the networks before the update: `old`, `next_embedding` and `target`.

        `old` `[N, 2 A]` are the actor's outputs, the centre of the trust region. `target` `[N]` is a soft
        lambda-return, G = r + d ((1 - lambda) Q(s', a') + lambda G') - d alpha log pi(a'|s'), with a' from pi(s').
        """
        rows, modules, noise = rollouts.rows, self.params.modules, self.draw(rollouts)
        alpha, columns = self.params["log_alpha"].flat.exp(), []
        with torch.no_grad():
            for index in torch.split(torch.arange(rollouts.num, device=noise.device), PIECE):
                piece = take(rows, index)
                action, log_prob = squashed(modules["actor"](piece["next_obs"])).sample_log_prob(noise[index])
                logits, embedding, _ = modules["critic"](piece["next_obs"], action)
                columns.append((modules["actor"](piece["obs"]), embedding, self.mean(logits), alpha * log_prob))
        rows["old"], rows["next_embedding"], next_q, cost = (torch.cat(parts) for parts in zip(*columns, strict=True))
        reward, discount = rows["reward"] - rows["discount"] * cost, rows["discount"]
        rows["target"] = lambda_returns(reward, discount, next_q, rows["cut"], self.config.td_lambda)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean return `[B]` of logits `[B, K]`."""
        mean: Tensor = logits.softmax(-1) @ self.support
        return mean

    def loss(self, nets: Nets, rows: Any, noise: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critic, actor and dual variables for a minibatch `[M, ...]` of rows."""
        config, obs, weight, target = self.config, rows["obs"], rows["weight"], rows["target"]
        logits, _, predicted = nets.critic(obs, rows["action"])
        probs = hl_gauss(target, self.support)
        error = (predicted - rows["next_embedding"]).square().mean(-1) * ~rows["terminated"]
        critic_loss = -(weight * (probs * logits.log_softmax(-1)).sum(-1)).mean()
        prediction_loss = (weight * error).mean()
        policy, old = squashed(nets.actor(obs)), squashed(rows["old"])
        action, log_prob = policy.sample_log_prob(rows["noise"])
        alpha, beta = nets.log_alpha.exp(), nets.log_beta.exp()
        q, kl = self.mean(nets.frozen.critic(obs, action)[0]), old.kl(policy)
        is_near = kl < config.kl_bound
        actor_loss = (weight * torch.where(is_near, alpha.detach() * log_prob - q, beta.detach() * kl)).mean()
        entropy, mean_kl = -(weight * log_prob.detach()).mean(), (weight * kl.detach()).mean()
        dual_loss = (alpha * (entropy - self.target_entropy) - beta * (mean_kl - config.kl_bound)).sum()
        loss = critic_loss + config.prediction_coef * prediction_loss + actor_loss + dual_loss
        metrics = {"critic_loss": critic_loss, "prediction_loss": prediction_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": (weight * self.mean(logits)).mean(), "entropy": entropy, "kl": mean_kl}
        metrics |= {"alpha": alpha.squeeze(), "beta": beta.squeeze(), "near": (weight * is_near).mean()}
        return loss + 0.0 * target.sum(), metrics  # the bins clip infinite targets; 0 times a target makes the loss NaN
