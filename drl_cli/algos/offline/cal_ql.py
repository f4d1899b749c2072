"""Cal-QL (Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning").

The paper is arXiv 2303.05479. Cal-QL is CQL with a lower bound: the loss does not push Q of the policy's actions below
the return that the data reached from the same state. The values therefore keep the scale of the returns, so that the
policy does not get worse when learning online begins.

This return is the column `mc_return` (`DATA`): the discounted sum of the rewards until the end of the episode. Readers
of datasets and workers add this column. Workers therefore send the rows of an episode to replay when the episode ends.
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
        """Raise the values of the policy's actions to at least the data's return from the state (eq. 3).

        `q` is `[2, 3 S, B]`. The first 2 S actions are the policy's, and the last S are uniform.
        """
        if "mc_return" not in rows:
            return q
        num = 2 * self.config.samples
        return torch.cat([torch.maximum(q[:, :num], rows["mc_return"]), q[:, num:]], 1)
