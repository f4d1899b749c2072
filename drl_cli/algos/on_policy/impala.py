"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561), and APPO (IMPACT, Luo et al. 2019, arXiv 1912.00167).

The rollouts are of older policies, because workers act while the trainer learns. V-trace corrects the advantages and
the critic's targets for the difference between the policy that acted and the trainer's policy.

Everything else is PPO's code. The ratio of PPO's clipped surrogate is relative to the trainer's policy at the start of
the update, not to the policy that acted. With one epoch and the whole rollout as one minibatch (`algo=impala`), the
ratio is 1, and the surrogate's gradient is the policy gradient, advantage * grad log pi(a|s). With several epochs
(`algo=appo`), the surrogate is clipped.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.on_policy import ppo
from drl_cli.algos.on_policy.ppo import ACTIONS as ACTIONS
from drl_cli.algos.on_policy.ppo import REWARDS as REWARDS
from drl_cli.algos.on_policy.ppo import Policy as Policy
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses.returns import vtrace_of_tensors
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Positive

TABLES = ("fifo-once", "fifo")


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Options of IMPALA and APPO."""

    rho_max: Positive
    c_max: Positive


class Algorithm(ppo.Algorithm):
    """Learns actor and critic in a trainer."""

    config: Config

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return V-trace's advantages and targets; make the trainer's policy the reference of the surrogate's ratio."""
        log_prob, _ = self.log_prob(self.actor.forward(features)[0][0], rollout.rows)
        log_ratio = log_prob - batch["log_prob"]
        rollout.rows["log_prob"] = log_prob
        config, reward, discount = self.config, batch["reward"], batch["discount"]
        steps = (reward, discount, value, next_value, batch["cut"], log_ratio)
        target, advantage = vtrace_of_tensors(*steps, config.rho_max, config.c_max, config.gae_lambda)
        return advantage, target
