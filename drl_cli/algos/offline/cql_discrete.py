"""CQL for discrete actions (Kumar et al. 2020, arXiv 2006.04779): DQN with CQL's conservative term in the loss.

The term is log(sum of exp(Q(s, a)) over all legal actions) minus Q of the batch's action. This term lowers Q of actions
that are not in the data (the paper's variant CQL(H)). All options of DQN apply.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.value import dqn
from drl_cli.algos.value._q_learner import Draws
from drl_cli.algos.value._q_policy import QPolicy
from drl_cli.losses.critics import mean
from drl_cli.losses.policy import permitted
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import NonNegative

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """The options of DQN, and the weight `cql_alpha` of the conservative term."""

    cql_alpha: NonNegative


class Policy(QPolicy):
    """Acts as DQN: the action with the largest Q value, or an exploring action."""


class Algorithm(dqn.Algorithm):
    """Trains a Q network with the targets of DQN and CQL's conservative term."""

    def loss(self, nets: Nets, rows: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Return DQN's loss plus the conservative term (eq. 4), and a dict: metrics and priorities `td_error` `[B]`."""
        view, weight = self.see(nets, rows), rows.get("weight")
        valid = rows.get("valid_weight")  # 0 for padding
        with torch.no_grad():
            target = self.target(nets, rows, view, draws)
        values = self.evaluate(nets, view.learned, draws.online)  # [B, A]
        q = self.chosen_values(values, rows["action"])  # [B]
        bellman, error = self.compare(q, target, weight, draws.online)
        gap = permitted(values, rows["mask_now"]).logsumexp(-1) - q
        conservative = self.config.cql_alpha * mean(gap, weight)
        metrics = {"q_loss": bellman, "conservative_loss": conservative, "q_mean": mean(q, valid)}
        return bellman + conservative, metrics | {"td_error": error}
