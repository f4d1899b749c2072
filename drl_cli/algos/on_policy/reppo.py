"""REPPO (Voelcker et al. 2025, "Relative Entropy Pathwise Policy Optimization", arXiv 2507.11019).

REPPO learns Q(s, a) from rollouts, without a replay table. As in SAC, the policy improves along the gradient of Q with
respect to the action. A bound limits the KL divergence between the old and the new policy of an update. Two dual
variables are learned: alpha, the weight of the entropy, and beta, the weight of the KL divergence.
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
    """The options of REPPO, which conf/algo/reppo.yaml explains. Raise Refused if the critic's support is wrong."""

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
    """The tanh-Gaussian actor, as in SAC."""


class Algorithm(OnPolicy):
    """Trains the actor, the critic and both dual variables from rollouts. Only the critic trains the encoder."""

    has_own_weights = False
    shuffle_seed_offset = 2
    config: Config

    def setup(self, config: Config, spec: EnvSpec) -> None:
        from drl_cli.networks.predictive import PredictiveCritic  # imports torch

        self.size = spec.action.size
        self.target_entropy = -0.5 * self.size if config.target_entropy is None else config.target_entropy
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)
        self.actor = self.mlp(2 * self.size, last=0.01)
        self.critic = PredictiveCritic(self.network, self.encoder.size, self.size, config.atoms)
        options = Part(config.lr, max_norm=self.context.optimizer.max_norm)  # clips the gradient of each network alone
        duals = dict.fromkeys(("log_alpha", "log_beta"), Part(config.dual_lr))
        actor, critic = self.actor, self.critic
        self.build(policy=("actor",), lr=options, lrs=duals, actor=actor, critic=critic, log_alpha=1, log_beta=1)
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))  # the 1 above is its size
        self.params["log_beta"].flat.fill_(math.log(config.initial_beta))
        self.noise = self.params.generator("noise", self.seed + 1)

    def draw(self, rollout: EncodedRollouts) -> Tensor:
        """Return standard normal noise `[N, A]`: A numbers for each of the rollout's N transitions."""
        return self.context.randn(rollout.num, self.size, self.noise)

    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Store what the loss of N transitions needs as new columns of `rollout.rows`; return {}.

        - `target` `[N]`: the soft lambda-returns G = r + d ((1 - lambda) Q(s', a') + lambda G' - alpha log pi(a'|s')),
          where d is the discount, a' is a sample of pi(s'), and G' is the next step's return, or Q(s', a') at a cut.
        - `next_embedding` `[N, Z]`: the critic's embeddings of next_obs and a', which the critic learns to predict.
        - `old` `[N, 2 A]`: the actor's outputs before the update.
        - `terminated` `[N]`: True if the episode terminated with this step.
        """
        features, next_features = rollout.features()
        next_policy = squashed(self.actor(next_features))
        next_action, log_prob = next_policy.sample_log_prob(self.draw(rollout))
        logits, embedding, _ = self.critic(next_features, next_action)
        entropy_cost = self.params["log_alpha"].flat.exp() * log_prob
        discount = batch["discount"]
        soft_reward = batch["reward"] - discount * entropy_cost
        next_q = self.q_value(logits)
        target = lambda_returns(soft_reward, discount, next_q, batch["cut"], self.config.td_lambda)
        columns = {"old": self.actor(features), "next_embedding": embedding, "target": target}
        rollout.rows.update(columns | {"terminated": batch["terminated"]})
        return {}

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        super().before_epoch(rollout)
        rollout.rows["noise"] = self.draw(rollout)

    def q_value(self, logits: Tensor) -> Tensor:
        """Return the means `[N]` of distributions of the return, given their logits `[N, atoms]`."""
        value: Tensor = logits.softmax(-1) @ self.support
        return value

    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the loss of a minibatch (a scalar), and metrics.

        The loss is the sum of the losses of the critic, of its prediction of next_embedding (times `prediction_coef`),
        of the actor and of the dual variables. In states where the KL divergence from the old policy is below
        `kl_bound`, the actor maximises the soft Q value. In all other states, it minimises the KL divergence.
        """
        config, weight, features = self.config, rows.get("weight"), self.features(nets, rows)
        logits, _, predicted = nets.critic(features, rows["action"], masks)
        target_probs = hl_gauss(rows["target"], self.support)
        critic_loss = -mean((target_probs * logits.log_softmax(-1)).sum(-1), weight)
        error = (predicted - rows["next_embedding"]).square().mean(-1)
        has_next = (~rows["terminated"]).float()
        prediction_loss = mean(error * has_next, weight)  # no action follows the end of an episode

        fixed_features = features.detach()  # so that the actor does not train the encoder
        policy, old_policy = squashed(nets.actor(fixed_features)), squashed(rows["old"])
        action, log_prob = policy.sample_log_prob(rows["noise"])
        alpha, beta = nets.log_alpha.exp(), nets.log_beta.exp()
        q_logits, _, _ = nets.frozen.critic(fixed_features, action, masks)  # the actor does not train the critic
        q, kl = self.q_value(q_logits), old_policy.kl(policy)
        is_near = kl < config.kl_bound
        soft_q_loss, kl_loss = alpha.detach() * log_prob - q, beta.detach() * kl
        actor_loss = mean(torch.where(is_near, soft_q_loss, kl_loss), weight)

        # Alpha grows while the entropy is below its target, and beta grows while the KL divergence is above its bound.
        entropy, mean_kl = -mean(log_prob.detach(), weight), mean(kl.detach(), weight)
        dual_loss = alpha * (entropy - self.target_entropy) - beta * (mean_kl - config.kl_bound)  # [1]
        metrics = {"critic_loss": critic_loss, "prediction_loss": prediction_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": mean(self.q_value(logits.detach()), weight), "entropy": entropy, "kl": mean_kl}
        metrics |= {"alpha": alpha.squeeze(), "beta": beta.squeeze(), "near": mean(is_near.float(), weight)}
        return critic_loss + config.prediction_coef * prediction_loss + actor_loss + dual_loss.sum(), metrics
