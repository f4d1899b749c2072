"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561), and APPO (IMPACT, Luo et al. 2019, arXiv 1912.00167).

Workers act while the trainer learns, so older policies made the rollouts. V-trace corrects the advantages and the
critic's targets for the difference between the policy that acted and the trainer's policy.

All other code is PPO's. In PPO's clipped surrogate, the denominator of the ratio is a reference policy: the trainer's
policy at the start of the update, not the policy that acted. With one epoch and the whole rollout as one minibatch
(`algo=impala`), the ratio is 1, and the surrogate's gradient is the policy gradient, advantage * grad log pi(a|s). With
several epochs (`algo=appo`), the surrogate is clipped. With `target_period` above 1, the reference policy is IMPACT's
target policy, which is copied from the trainer's policy every `target_period` updates.
"""

from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.on_policy import ppo
from drl_cli.algos.on_policy.ppo import ACTIONS as ACTIONS
from drl_cli.algos.on_policy.ppo import REWARDS as REWARDS
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.errors import Refused
from drl_cli.losses.returns import vtrace
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.torsos import torso_name
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Positive

TABLES = ("fifo-once", "fifo")


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Options of IMPALA and APPO."""

    rho_max: Positive
    c_max: Positive
    target_period: Count


class Policy(ppo.Policy):
    """PPO's actor."""

    @classmethod
    def check(cls, config: Config, network: NetworkConfig, spec: EnvSpec) -> None:
        super().check(config, network, spec)
        has_encoder = network.memory != "none" or torso_name(network, spec) is not None
        if config.target_period > 1 and has_encoder:
            raise Refused(f"algo.target_period={config.target_period} needs a network without torso and memory; say 1")


class Algorithm(ppo.Algorithm):
    """Learns actor and critic in a trainer."""

    config: Config

    def setup(self, config: Any, spec: EnvSpec) -> None:
        if config.target_period > 1:
            self.targets = ("actor", "log_std")
        super().setup(config, spec)

    def update(self, batch: Batch, counts: Counts) -> Update:
        update, period = super().update(batch, counts), self.config.target_period
        if period > 1 and (counts.opt_steps + update.steps) // period > counts.opt_steps // period:
            self.params.follow(1.0)
        return update

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return V-trace's advantages and targets, and write the reference policy's `log_prob` into `rollout.rows`."""
        targets = self.params.targets
        out = targets["actor"](features) if targets else self.actor(features)
        log_std = targets["log_std"].flat if targets else self.log_std
        log_prob = self.distribution(out, log_std, rollout.rows).log_prob(rollout.rows["action"])
        rollout.rows["log_prob"] = log_prob
        config, reward, discount = self.config, batch["reward"], batch["discount"]
        steps = (reward, discount, value, next_value, batch["cut"], log_prob - batch["log_prob"])
        target, advantage = vtrace(*steps, config.rho_max, config.c_max, config.gae_lambda)
        return advantage, target
