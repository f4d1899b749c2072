"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561), and APPO (IMPACT, Luo et al. 2019, arXiv 1912.00167).

Workers collect rollouts while the trainer learns, so a rollout comes from an older policy than the trainer's. V-trace
corrects the advantages and the critic's targets for this difference.

The loss is PPO's clipped surrogate with the ratio pi(a|s) / pi_ref(a|s). The reference policy pi_ref is the trainer's
policy at the start of the update, not the older policy that acted. `algo=impala` makes one gradient step with the whole
rollout. The ratio is then 1, and the gradient is the policy gradient, advantage * grad log pi(a|s). `algo=appo` makes
several epochs, in which the ratio is clipped. With `target_period` above 1, pi_ref is IMPACT's target policy: a copy of
the trainer's policy, renewed every `target_period` gradient steps.
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
    """The options of IMPALA and APPO, which conf/algo/impala.yaml explains."""

    rho_max: Positive
    c_max: Positive
    target_period: Count


class Policy(ppo.Policy):
    """The actor of PPO. It refuses `target_period` above 1 if the encoder learns, as only the actor has a target."""

    @classmethod
    def check(cls, config: Config, network: NetworkConfig, spec: EnvSpec) -> None:
        super().check(config, network, spec)
        has_torso, has_memory = torso_name(network, spec) is not None, network.memory != "none"
        if config.target_period > 1 and (has_torso or has_memory):
            raise Refused(f"algo.target_period={config.target_period} needs a network without torso and memory; say 1")


class Algorithm(ppo.Algorithm):
    """Trains PPO's actor and critic with V-trace's advantages and value targets."""

    config: Config

    def setup(self, config: Any, spec: EnvSpec) -> None:
        if config.target_period > 1:
            self.targets = ("actor", "log_std")
        super().setup(config, spec)

    def update(self, batch: Batch, counts: Counts) -> Update:
        update, period = super().update(batch, counts), self.config.target_period
        copies_before, copies_now = counts.opt_steps // period, (counts.opt_steps + update.steps) // period
        if period > 1 and copies_now > copies_before:
            self.params.follow(1.0)  # copy the actor to its target network
        return update

    def advantages(
        self, batch: Batch, rollout: EncodedRollouts, features: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return V-trace's advantages and the critic's targets of N transitions, `[N]` each.

        Also set the column `log_prob` of `rollout.rows` to the log-probabilities of the reference policy. `features`
        `[N, F]` are those of `obs`. `value` and `next_value`, `[N]` each, are V(obs) and V(next_obs).
        """
        targets = self.params.targets
        out = targets["actor"](features) if targets else self.actor(features)
        log_std = targets["log_std"].flat if targets else self.log_std
        log_prob = self.distribution(out, log_std, rollout.rows).log_prob(rollout.rows["action"])
        rollout.rows["log_prob"] = log_prob
        config, reward, discount, cut = self.config, batch["reward"], batch["discount"], batch["cut"]
        log_ratio = log_prob - batch["log_prob"]  # log(pi_ref / mu), where mu is the policy that acted
        limits = {"rho_max": config.rho_max, "c_max": config.c_max, "lambda_": config.gae_lambda}
        target, advantage = vtrace(reward, discount, value, next_value, cut, log_ratio, **limits)
        return advantage, target
