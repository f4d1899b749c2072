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

import drl_cli.api as drl
from drl_cli.algos.on_policy import ppo
from drl_cli.algos.on_policy.ppo import ACTIONS, REWARDS, columns, networks, policy
from drl_cli.api import torch
from drl_cli.networks.torsos import torso_name

TABLES = ("fifo-once", "fifo")
__all__ = ["ACTIONS", "REWARDS", "Algorithm", "Config", "check", "columns", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """The options of IMPALA and APPO, which conf/algo/impala.yaml explains."""

    rho_max: drl.Positive
    c_max: drl.Positive
    target_period: drl.Count


def check(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
    """Refuse what PPO refuses, and `target_period` above 1 if the encoder learns, as only the actor has a target."""
    ppo.check(config, network, spec)
    has_torso, has_memory = torso_name(network, spec) is not None, network.memory != "none"
    if config.target_period > 1 and (has_torso or has_memory):
        raise drl.Refused(f"algo.target_period={config.target_period} needs a network without torso and memory; say 1")


class Algorithm(ppo.Algorithm):
    """Learns PPO's actor and critic with V-trace's advantages and value targets."""

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context):
        if config.target_period > 1:
            self.targets = ("actor", "log_std")  # type: ignore[misc]
        super().__init__(config, network, spec, seed, context)

    def advantages(
        self, batch: drl.Batch, rows: ppo.Rows, x: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return V-trace's advantages and targets. Set `log_prob` in `rows` to the one of the reference policy."""
        config, nets = self.config, self.nets.target if self.targets else self.nets
        pi_ref = ppo.distribution(config, self.spec, nets.actor(x), nets.log_std(), rows.get("action_mask"))
        rows["log_prob"] = pi_ref.log_prob(rows["action"])
        log_ratio = rows["log_prob"] - batch["log_prob"]  # log(pi_ref / mu), where mu is the policy that acted
        limits = {"rho_max": config.rho_max, "c_max": config.c_max, "lambda_": config.gae_lambda}
        steps = (batch["reward"], batch["discount"], value, next_value, batch["cut"])
        target, advantage = drl.losses.vtrace(*steps, log_ratio, **limits)
        return advantage, target

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        update, period = super().update(batch, counts), self.config.target_period
        copies_before, copies_now = counts.opt_steps // period, (counts.opt_steps + update.steps) // period
        if period > 1 and copies_now > copies_before:
            self.params.follow(1.0)  # copy the actor to its target network
        return update
