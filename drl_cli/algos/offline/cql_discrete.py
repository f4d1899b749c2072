"""CQL for discrete actions (Kumar et al. 2020, arXiv 2006.04779): DQN with CQL's conservative term in the loss.

The term is log(sum of exp(Q(s, a)) over all legal actions) minus Q of the batch's action. This term lowers Q of actions
that are not in the data (the paper's variant CQL(H)). All options of DQN apply.
"""

from dataclasses import dataclass

import drl_cli.api as drl
from drl_cli.algos.value import dqn
from drl_cli.algos.value._shared import taken, td_loss
from drl_cli.algos.value.dqn import explore, networks, noise, policy, priorities
from drl_cli.api import torch

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy", "priorities"]


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """The options of DQN, and the weight `cql_alpha` of the conservative term."""

    cql_alpha: drl.NonNegative


class Algorithm(dqn.Algorithm):
    """Trains a Q network with the targets of DQN and CQL's conservative term."""

    def loss(self, batch: drl.Batch, rows: drl.Batch) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return DQN's loss plus the conservative term (eq. 4), the metrics, and |TD error| `[N]`."""
        weight, (values, target) = rows.get("weight"), self.compared(batch, rows)
        q = taken(values, rows["action"])  # [N]
        bellman = td_loss(self.config, q - target, weight)
        gap = drl.permitted(values, drl.action_mask(rows["obs"])).logsumexp(-1) - q
        conservative = self.config.cql_alpha * drl.losses.mean(gap, weight)
        q_mean = drl.losses.mean(q, rows.get("valid_weight"))
        metrics = {"q_loss": bellman, "conservative_loss": conservative, "q_mean": q_mean}
        return bellman + conservative, metrics, (q - target).detach().abs()
