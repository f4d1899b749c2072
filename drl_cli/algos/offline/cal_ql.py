"""Cal-QL (Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning").

The paper is arXiv 2303.05479. Cal-QL is CQL that does not push Q of the policy's actions below the return that the data
reached from the same state. Such values have the right scale for learning online, and are not unlearned there.

This return is the column `mc_return` (`DATA`), the discounted sum of the rewards until the episode's end. Readers of
datasets add it, and workers do, too. Their rows therefore reach replay when the episode ends.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import SquashedPolicy
from drl_cli.algos.offline import cql
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import NonNegative

ACTIONS, TABLES = cql.ACTIONS, cql.TABLES
DATA = ("mc_return",)


@dataclass(frozen=True, kw_only=True)
class Config(cql.Config):
    """Options of Cal-QL."""

    cql_alpha: NonNegative


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(cql.Algorithm):
    """Learns actor, critics and temperature in a trainer."""

    def bounded(self, q: Tensor, rows: Batch) -> Tensor:
        """Return at least the data's return for the policy's actions, in this state and of the next (eq. 3)."""
        if "mc_return" not in rows:
            return q
        drawn = 2 * self.config.samples
        return torch.cat([torch.maximum(q[:, :drawn], rows["mc_return"]), q[:, drawn:]], 1)
