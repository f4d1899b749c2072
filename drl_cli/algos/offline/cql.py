"""CQL (Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", arXiv 2006.04779).

CQL is SAC with a conservative term in the loss of the critics: log(integral of exp(Q(s, a)) over all actions) minus Q
of the batch's action. This term lowers Q of actions that are not in the data (the paper's variant CQL(H)). The integral
is estimated by importance sampling, with uniform actions and actions of the policy (appendix F).
"""

import math
from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy, squashed
from drl_cli.algos.off_policy._soft import SoftConfig
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.networks.encoder import View
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive

ACTIONS, TABLES = sac.ACTIONS, sac.TABLES


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """The options of CQL, which conf/algo/cql.yaml explains."""

    actor_lr: Positive
    tau: Fraction
    cql_alpha: NonNegative
    samples: Count


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor, as in SAC."""


class Algorithm(sac.Algorithm):
    """Trains the actor, the critics and the temperature as SAC does, but with CQL's loss of the critics."""

    def rates(self, config: Config) -> dict[str, float]:
        return {**super().rates(config), "actor": config.actor_lr}

    def draws(self, rows: int, trains_actor: bool) -> tuple[Random, Random]:
        """Draw the random numbers of the critics' loss and of the actor's loss.

        The critics' loss also gets the numbers for the actions of the conservative term: `policy` `[rows, 2 S A]`,
        standard normal, and `uniform` `[rows, S A]`, uniform in [0, 1). S is `config.samples`.
        """
        critics, actor = super().draws(rows, trains_actor)
        num = self.config.samples * self.size
        critics["policy"] = self.context.randn(rows, 2 * num, self.noise)
        critics["uniform"] = self.context.rand(rows, num, self.noise)
        return critics, actor

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of both critics plus the conservative term (eq. 4), and a dict.

        As in the authors' code, the Bellman error has no factor 1/2, and the target has no entropy bonus. The dict has
        metrics, the priorities `td_error` `[B]`, and `features` `[B, F]`, the features of `obs` for the actor's loss.
        """
        view, weight = self.see(nets, rows), rows.get("weight")
        valid = rows.get("valid_weight")  # 0 for padding
        with torch.no_grad():
            next_action, _ = self.next_action(nets, view.next_obs, random)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)
            target = rows["reward"] + rows["discount"] * next_q.amin(0)
        # `view.learned` and `view.obs` are equal features, but only the gradient of `view.learned` trains the encoder.
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        bellman = twin_critics(q, target, weight)
        gap = self.log_sum_exp(nets, view, rows, random) - q
        conservative = self.config.cql_alpha * mean(gap.sum(0), weight)
        metrics = {"critic_loss": bellman, "conservative_loss": conservative, "q_mean": mean(q, valid)}
        columns = {"td_error": (q - target).abs().mean(0), "features": view.obs}
        return bellman + conservative, metrics | columns

    def log_sum_exp(self, nets: Nets, view: View, rows: Batch, random: Random) -> Tensor:
        """Return an estimate of log(integral of exp(Q(s, a)) over all actions a) for each critic and state, `[2, B]`.

        The estimate uses Q(s, a) of 3 S actions in each state s: S samples of the policy in s, S samples of the policy
        in the next state, and S uniform actions. Each exp(Q) is divided by the density from which its action was drawn.
        The sum is not divided by 3 S, because a constant does not change the gradient.
        """
        num, samples = len(rows["reward"]), self.config.samples
        with torch.no_grad():
            noise, next_noise = random["policy"].view(num, 2, samples, self.size).permute(1, 2, 0, 3)  # [S, B, A] each
            action, log_prob = squashed(nets.actor(view.obs)).sample_log_prob(noise)  # [S, B, A] and [S, B]
            next_action, next_log_prob = squashed(nets.actor(view.next_obs)).sample_log_prob(next_noise)
            uniform = random["uniform"].view(num, samples, self.size).transpose(0, 1) * 2.0 - 1.0  # in [-1, 1)
            uniform_log_prob = torch.full_like(log_prob, -self.size * math.log(2.0))  # the density on [-1, 1] is 1/2
            actions = torch.cat([action, next_action, uniform])  # [3 S, B, A]
            log_probs = torch.cat([log_prob, next_log_prob, uniform_log_prob])  # [3 S, B]
        # All 3 S actions of a state get the features and the dropout masks of this state.
        features = view.learned.repeat(3 * samples, 1)  # [3 S B, F]
        masks = [mask.repeat(1, 3 * samples, 1) for mask in random["masks"]]  # [2, 3 S B, units] each
        q = nets.critic(features, actions.flatten(0, 1), masks).view(2, 3 * samples, num)
        return (self.calibrated(q, rows) - log_probs).logsumexp(1)

    def calibrated(self, q: Tensor, rows: Batch) -> Tensor:
        """Return Q of the sampled actions, `[2, 3 S, B]`, unchanged. Cal-QL overrides this method."""
        return q
