"""Base classes of C51, QR-DQN and IQN: DQN whose network predicts a distribution of the return for each action."""

from dataclasses import dataclass
from typing import Literal

from drl_cli.algos.value import dqn
from drl_cli.algos.value._q_learner import Random
from drl_cli.errors import Refused
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """The options of C51, QR-DQN and IQN in addition to the options of DQN.

    The policy compares actions by the mean of the return, or by the risk measure `risk` with the level `risk_level`.
    Training always uses the mean. Raise Refused if the level of `cvar` is not in (0, 1].
    """

    risk: Literal["mean", "cvar", "power"]
    risk_level: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.risk == "cvar" and not 0.0 < self.risk_level <= 1.0:
            raise Refused(f"algo.risk_level={self.risk_level:g} has to be above 0 and at most 1 for algo.risk=cvar")


class Algorithm(dqn.Algorithm):
    """DQN whose network returns K numbers for each action: logits of probabilities, or quantiles of the return."""

    def evaluate(self, nets: Nets, x: Tensor, random: Random) -> Tensor:
        """Return the network's outputs `[N, A, K]` for features `x` `[N, F]`, using the random numbers `random`."""
        return super().evaluate(nets, x, random).view(len(x), self.num_actions, -1)
