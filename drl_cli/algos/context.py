"""AlgoContext: what an algorithm gets from its run besides its options. `drl.Context` is this class."""

from dataclasses import dataclass, field

from drl_cli.algos.reward_config import RewardConfig
from drl_cli.optim.context import Context


@dataclass(frozen=True)
class AlgoContext(Context):
    """A Context with the options of the replay and of the reward module that an algorithm needs.

    The first `burn_in` steps of every sequence only warm up the memory: no loss is computed for these steps. `reward`
    names a reward module, and has its options.
    """

    burn_in: int = 0
    reward: RewardConfig = field(default_factory=RewardConfig)
