"""AlgoContext: everything besides its options that a run gives to an algorithm. `drl.Context` is this class."""

from dataclasses import dataclass, field

from drl_cli.algos.reward_config import RewardConfig
from drl_cli.optim.context import Context


@dataclass(frozen=True)
class AlgoContext(Context):
    """A Context, plus the replay's `burn_in` and the options of the reward module.

    The first `burn_in` steps of every sequence only compute the recurrent state; no loss is computed for these steps.
    `reward` has the name and the options of the reward module.
    """

    burn_in: int = 0
    reward: RewardConfig = field(default_factory=RewardConfig)
