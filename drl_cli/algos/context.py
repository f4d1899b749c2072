"""AlgoContext: the settings of a run that an algorithm gets besides its options. This file must not import torch."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from drl_cli.optim.context import Context
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Positive, Range, name_or_class

REWARDS = ("none", "rnd", "icm")


@dataclass(frozen=True)
class RewardConfig:
    """The options of the reward module, which conf/reward explains.

    If `coef`, `gamma`, `lr` or `minibatch_size` is None, the module keeps the default value of its class. rnd needs
    values of `hidden` and `features`, and icm also of `forward_share`. Other modules have none of these options.
    `name` is a built-in module or the import path `my_pkg.my_module:Class` of a user's module.
    """

    name: Annotated[str, name_or_class(*REWARDS)] = "none"
    coef: NonNegative | None = None
    gamma: Annotated[float, Range(least=0, below=1)] | None = None
    lr: Positive | None = None
    minibatch_size: Count | None = None
    hidden: tuple[Count, ...] | None = None
    features: Count | None = None
    forward_share: Fraction | None = None

    @property
    def outside(self) -> str | None:
        return self.name if ":" in self.name else None

    @property
    def options(self) -> list[str]:
        return sorted(key for key, value in vars(self).items() if key != "name" and value is not None)

    def problems(self) -> Iterator[str]:
        """Yield error messages for options that are set although the module does not have these options.

        Also yield an error message if the module needs options that are not set.
        """
        network_options = {"hidden", "features", "forward_share"}  # options of the networks of rnd and icm
        # The options that each built-in module lacks. A user's module lacks all options of these networks.
        lacking = {"none": vars(self).keys() - {"name"}, "rnd": {"forward_share"}, "icm": set[str]()}
        for key in sorted(lacking.get(self.name, network_options)):
            if getattr(self, key) is not None:
                others = " or reward=".join(name for name in REWARDS if key not in lacking[name])
                yield f"reward.{key}: reward={self.name} has no such option; say reward={others}, or leave it out"
        if self.name in ("rnd", "icm"):
            needed = sorted(network_options - lacking[self.name])
            missing = [f"reward.{key}" for key in needed if getattr(self, key) is None]
            if missing:
                yield f"reward.name={self.name} sets no value for {', '.join(missing)}; say reward={self.name}"


@dataclass(frozen=True)
class AlgoContext(Context):
    """The settings of a run that an algorithm gets besides its options. `drl_cli.api` exports this class as `Context`.

    The base class has the device, the group of trainers and the options of the optimizer. The first `burn_in` steps of
    every sequence only compute the recurrent state, and no loss is computed for these steps. `reward` has the name and
    the options of the reward module, such as RND, which adds an intrinsic reward.
    """

    burn_in: int = 0
    reward: RewardConfig = field(default_factory=RewardConfig)
