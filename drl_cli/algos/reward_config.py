"""RewardConfig: the options of the reward module. This file must not import torch, so that commands start fast."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from drl_cli.utils.ranges import Count, Fraction, NameOrClass, NonNegative, Positive, Range

REWARDS = ("none", "rnd", "icm")


@dataclass(frozen=True)
class RewardConfig:
    """Options of the reward module, explained in conf/reward. None stands for the module's default value."""

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
        """The import path of the user's reward module, or None if the name is built-in."""
        return self.name if ":" in self.name else None

    @property
    def options(self) -> list[str]:
        """The names of all options that are not None, sorted."""
        return sorted(key for key, value in vars(self).items() if key != "name" and value is not None)

    def problems(self) -> Iterator[str]:
        """Yield an error line for each option that the module does not have, and for required options that are None."""
        unused = {"none": vars(self).keys() - {"name"}, "rnd": {"forward_share"}, "icm": set[str]()}
        for key in sorted(unused.get(self.name, {"hidden", "features", "forward_share"})):
            if getattr(self, key) is not None:
                others = " or reward=".join(name for name in REWARDS if key not in unused[name])
                yield f"reward.{key}: reward={self.name} has no such option; say reward={others}, or leave it out"
        is_built_in = self.name in ("rnd", "icm")
        needed = {"hidden", "features", "forward_share"} - unused[self.name] if is_built_in else set[str]()
        if missing := [f"reward.{key}" for key in sorted(needed) if getattr(self, key) is None]:
            yield f"reward.name={self.name} sets no value for {', '.join(missing)}; say reward={self.name}"
