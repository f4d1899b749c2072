"""REPPO (Voelcker et al. 2025, "Relative Entropy Pathwise Policy Optimization", arXiv 2507.11019).

REPPO learns Q(s, a) from rollouts, without replay, and improves the policy with the gradient of Q with respect to the
action, as SAC does. A bound limits the KL divergence from the policy before the update. The weight of the entropy
(alpha) and the weight of the KL divergence (beta) are learned dual variables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import SquashedPolicy, check_support, squashed
from drl_cli.algos.on_policy._base import Metrics, OnPolicy, OnPolicyConfig
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses.critics import mean
from drl_cli.losses.distributional import hl_gauss
from drl_cli.losses.returns import lambda_returns
from drl_cli.optim.gradients import Nets
from drl_cli.optim.optimizer_config import Part
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

ACTIONS = ("box",)
TABLES = ("fifo-once",)


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Options of REPPO."""

    dual_lr: Positive
    td_lambda: Fraction
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


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(OnPolicy):
    """Learns actor, critic and both dual variables in a trainer. The encoder learns from the critic's loss."""

    has_own_weights = False
    shuffle_stream = 2
    config: Config

    def setup(self, config: Config, spec: EnvSpec) -> None:
        from drl_cli.networks.predictive import PredictiveCritic  # imports torch

        self.size = spec.action.size
        self.target_entropy = -0.5 * self.size if config.target_entropy is None else config.target_entropy
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)
        self.actor = self.mlp(2 * self.size, last=0.01)
        self.critic = PredictiveCritic(self.network, self.encoder.size, self.size, config.atoms)
        part = Part(config.lr, max_norm=self.context.optimizer.max_norm)  # the gradient of each part is clipped alone
        duals = dict.fromkeys(("log_alpha", "log_beta"), Part(config.dual_lr))
        self.build(("actor",), part, duals, actor=self.actor, critic=self.critic, log_alpha=1, log_beta=1)
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))
        self.params["log_beta"].flat.fill_(math.log(config.initial_beta))
        self.noise = self.params.generator("noise", self.seed + 1)

    def draw(self, rollout: EncodedRollouts) -> Tensor:
        """Return normal noise for one action in every row, `[N, A]`."""
        return self.context.randn(rollout.num, self.size, self.noise)

    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Add the columns `old`, `next_embedding`, `target` and `terminated` to `rollout.rows`.

        `old` `[N, 2 A]` has the actor's outputs before the update. `next_embedding` `[N, Z]` is what the critic learns
        to predict. `target` `[N]` is the soft lambda-return, with a' drawn from pi(s') and the discount d:
        G = r + d ((1 - lambda) Q(s', a') + lambda G') - d alpha log pi(a'|s').
        """
        obs, next_obs = rollout.features()
        action, log_prob = squashed(self.actor(next_obs)).sample_log_prob(self.draw(rollout))
        logits, embedding, _ = self.critic(next_obs, action)
        cost = self.params["log_alpha"].flat.exp() * log_prob
        reward, discount = batch["reward"] - batch["discount"] * cost, batch["discount"]
        target = lambda_returns(reward, discount, self.mean(logits), batch["cut"], self.config.td_lambda)
        columns = {"old": self.actor(obs), "next_embedding": embedding, "target": target}
        rollout.rows.update(columns | {"terminated": batch["terminated"]})
        return {}

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        super().before_epoch(rollout)
        rollout.rows["noise"] = self.draw(rollout)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean return `[B]` of the distribution softmax(logits), `[B, K]`."""
        value: Tensor = logits.softmax(-1) @ self.support
        return value

    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the sum of the losses of critic, actor and dual variables.

        The actor maximises the soft Q value in rows whose KL divergence is below `kl_bound`. In all other rows, it
        reduces the KL divergence.
        """
        config, weight, obs = self.config, rows.get("weight"), self.features(nets, rows)
        logits, _, predicted = nets.critic(obs, rows["action"], masks)
        probs = hl_gauss(rows["target"], self.support)
        critic_loss = -mean((probs * logits.log_softmax(-1)).sum(-1), weight)
        error = (predicted - rows["next_embedding"]).square().mean(-1) * ~rows["terminated"]
        prediction_loss = mean(error, weight)

        obs = obs.detach()  # so that the actor does not train the encoder
        policy, old = squashed(nets.actor(obs)), squashed(rows["old"])
        action, log_prob = policy.sample_log_prob(rows["noise"])
        alpha, beta = nets.log_alpha.exp(), nets.log_beta.exp()
        q, kl = self.mean(nets.frozen.critic(obs, action, masks)[0]), old.kl(policy)
        is_near = kl < config.kl_bound
        actor_loss = mean(torch.where(is_near, alpha.detach() * log_prob - q, beta.detach() * kl), weight)

        entropy, mean_kl = -mean(log_prob.detach(), weight), mean(kl.detach(), weight)
        dual_loss = (alpha * (entropy - self.target_entropy) - beta * (mean_kl - config.kl_bound)).sum()
        metrics = {"critic_loss": critic_loss, "prediction_loss": prediction_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": mean(self.mean(logits.detach()), weight), "entropy": entropy, "kl": mean_kl}
        metrics |= {"alpha": alpha.squeeze(), "beta": beta.squeeze(), "near": mean(is_near.float(), weight)}
        return critic_loss + config.prediction_coef * prediction_loss + actor_loss + dual_loss, metrics
