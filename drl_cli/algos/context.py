"""AlgoContext: the settings of a run that an algorithm gets besides its options, such as device and trainers."""

from dataclasses import dataclass, field

from drl_cli.algos.reward_config import RewardConfig
from drl_cli.optim.context import Context


@dataclass(frozen=True)
class AlgoContext(Context):
    """The settings of a run that an algorithm gets besides its options. `drl_cli.api` exports this class as `Context`.

    The base class has the device, the group of trainers and the options of the optimizer. The first `burn_in` steps of
    every sequence only compute the recurrent state, and no loss is computed for these steps. `reward` has the name and
    the options of the reward module, such as RND, which adds an intrinsic reward.
    """

    burn_in: int = 0
    reward: RewardConfig = field(default_factory=RewardConfig)
