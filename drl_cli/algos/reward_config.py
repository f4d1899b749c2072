"""RewardConfig: the options of the reward module. Checking a command reads this file, so it imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from drl_cli.utils.ranges import Count, Fraction, NameOrClass, NonNegative, Positive, Range

REWARDS = ("none", "rnd", "icm")


@dataclass(frozen=True)
class RewardConfig:
    """Options of the reward module, explained in conf/reward. A value of None leaves the choice to the module."""

    name: Annotated[str, NameOrClass(REWARDS)] = "none"
    coef: NonNegative | None = None
    gamma: Annotated[float, Range(least=0, below=1)] | None = None
    lr: Positive | None = None
    minibatch_size: Count | None = None
    hidden: tuple[Count, ...] | None = None
    features: Count | None = None
    forward_share: Fraction | None = None

    @property
    def outside(self) -> str | None:
        """The import path of a module of the user, or None."""
        return self.name if ":" in self.name else None

    @property
    def options(self) -> list[str]:
        """The names of the options that are set, sorted."""
        return sorted(key for key, value in vars(self).items() if key != "name" and value is not None)

    def problems(self) -> Iterator[str]:
        """Yield a line for each option that the chosen module does not have, and for options that it needs."""
        unused = {"none": vars(self).keys() - {"name"}, "rnd": {"forward_share"}, "icm": set[str]()}
        for key in sorted(unused.get(self.name, {"hidden", "features", "forward_share"})):
            if getattr(self, key) is not None:
                others = " or reward=".join(name for name in REWARDS if key not in unused[name])
                yield f"reward.{key}: reward={self.name} has no such option; say reward={others}, or leave it out"
        needed = {"rnd", "icm"} & {self.name} and {"hidden", "features", "forward_share"} - unused[self.name]
        if missing := [f"reward.{key}" for key in sorted(needed) if getattr(self, key) is None]:
            yield f"reward.name={self.name} sets no value for {', '.join(missing)}; say reward={self.name}"
