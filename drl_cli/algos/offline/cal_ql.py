"""Cal-QL (Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning").

The paper is arXiv 2303.05479. CQL pushes Q of the policy's actions down, often far below any real return. Cal-QL is CQL
with a lower bound: Q is not pushed below the return that the data reached from the same state. Q then has the scale of
the returns, so that the policy does not get worse when online learning begins.

This return is the column `mc_return`: the discounted sum of the rewards until the episode ends or is cut. Both the
reader of a dataset and the workers compute it, so workers send the transitions of an episode to replay when it ends.
"""

from dataclasses import dataclass

import drl_cli.api as drl
from drl_cli.algos.offline import cql
from drl_cli.algos.offline.cql import networks, policy
from drl_cli.api import torch

ACTIONS, TABLES = cql.ACTIONS, cql.TABLES
DATA = ("mc_return",)
"""Columns that are computed from whole episodes."""
__all__ = ["Algorithm", "Config", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(cql.Config):
    """The options of Cal-QL: those of CQL."""


class Algorithm(cql.Algorithm):
    """Trains SAC's actor, critics and temperature with Cal-QL's loss of the critics."""

    def calibrated(self, q: torch.Tensor, rows: drl.Batch) -> torch.Tensor:
        """Return `q`, where Q of the policy's actions is at least the data's return from the same state (section 5).

        `q` `[2, 3 S, B]` has the values of both critics for 3 S sampled actions in each of B states. The policy sampled
        the first 2 S actions. The last S actions are uniformly random, and their values do not change.
        """
        if "mc_return" not in rows:  # in `drl_cli.testing`, whose batches have no columns of a dataset
            return q
        num_policy = 2 * self.config.samples
        of_policy, of_uniform = q[:, :num_policy], q[:, num_policy:]
        return torch.cat([torch.maximum(of_policy, rows["mc_return"]), of_uniform], 1)
