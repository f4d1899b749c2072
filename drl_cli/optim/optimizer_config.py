"""The options of the optimizer. This file must not import torch, so that commands start fast."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from drl_cli.utils.lazy import torch
from drl_cli.utils.outside import NotFound, import_object
from drl_cli.utils.ranges import Fraction, Natural, NonNegative, Positive, name_or_class

NAMES = (
    *("adam", "adamw", "laprop", "rmsprop", "sgd", "nadam", "radam", "adamax", "adagrad"),
    *("adadelta", "adafactor", "asgd", "rprop"),
)
OWN_OPTIONS = {"adam": {"betas", "eps"}, "adamw": {"betas", "eps"}, "laprop": {"betas", "eps", "clip"}}
"""The options in `optimizer.kwargs` of the rules that are not classes of torch.optim (FusedAdam, LaProp)."""
_CAPITALS = {"rmsprop": "RMSprop", "sgd": "SGD", "asgd": "ASGD", "adamw": "AdamW", "nadam": "NAdam", "radam": "RAdam"}
"""Names of torch.optim classes that have more than one capital letter."""
OPTIMIZERS: Mapping[str, str] = {name: _CAPITALS.get(name, name.capitalize()) for name in NAMES if name != "laprop"}
"""The class name in torch.optim for each `optimizer.name`. All these classes work on flat tensors."""


@dataclass(frozen=True)
class Part:
    """Options of the optimizer for one part of an algorithm's parameters.

    An option that is None gets its value from OptimizerConfig (`betas` from its `kwargs`). A part with its own
    `max_norm` is clipped alone. The gradients of all other parts are clipped together. Raise ValueError if a value is
    out of range.
    """

    lr: float
    weight_decay: float | None = None
    max_norm: float | None = None
    betas: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        is_negative = self.lr < 0 or (self.weight_decay is not None and self.weight_decay < 0)
        if is_negative or (self.max_norm is not None and self.max_norm <= 0):
            raise ValueError(f"{self}: lr and weight_decay have to be at least 0, and max_norm above 0")
        if self.betas is not None and not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"{self}: betas have to be at least 0 and below 1")


@dataclass(frozen=True)
class OptimizerConfig:
    """The options in conf/optimizer. Learning rates are options of the algorithm."""

    name: Annotated[str, name_or_class(*NAMES)] = "adam"
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Natural = 0
    end: Fraction = 0.0
    max_norm: Positive | None = None
    weight_decay: NonNegative = 0.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: arguments of the torch.optim class

    def factor(self, position: int, total: int) -> float:
        """Return the factor that multiplies all learning rates at a position of the run.

        `position` and `total`, the length of the run, count environment steps or updates. The factor grows linearly
        to 1 during the warm-up. Then it stays 1, or falls to `end` at the end of the run, linearly or along half a
        cosine (Loshchilov & Hutter 2017, arXiv 1608.03983, eq. 5).
        """
        if position < self.warmup_steps:
            return (position + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return 1.0
        progress = min(1.0, (position - self.warmup_steps) / max(1, total - self.warmup_steps))  # 1 at the end
        decay = 1.0 - progress if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.end + (1.0 - self.end) * decay

    @property
    def is_constant(self) -> bool:
        """Whether the learning rates stay the same during the whole run."""
        return self.schedule == "constant" and not self.warmup_steps

    @property
    def kind(self) -> Any:  # Any: a class derived from torch.optim.Optimizer
        """The class of torch.optim, or the user's class, with this `name`. Raise errors as `import_object` does."""
        return import_object(self.name) if ":" in self.name else getattr(torch.optim, OPTIMIZERS[self.name])


FIXED = {"self", "params", "lr", "weight_decay", "foreach", "maximize", "capturable", "differentiable", "fused"}
"""Arguments of a torch.optim class that `optimizer.kwargs` may not set."""


def option_problems(config: OptimizerConfig) -> list[str]:
    """Check `kwargs` and `weight_decay`. Return an error message for each option that the optimizer does not have.

    A class that cannot be imported, that is no optimizer, or that takes no `lr` gives an error message, too. Raise
    ModuleRaised if the import of the user's module raises.
    """
    if config.name in OWN_OPTIONS:
        return _unknown(config, OWN_OPTIONS[config.name])
    is_users_class = ":" in config.name
    if not is_users_class and not config.kwargs and not config.weight_decay:
        return []  # without an import of torch, which takes seconds
    try:
        kind = config.kind
    except NotFound as error:
        return [f"optimizer.name: {error}"]
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        return [f"optimizer.name: {config.name} has to be a class derived from torch.optim.Optimizer"]
    known = argument_names(kind)
    problems = [] if "lr" in known else [f"optimizer.name: {config.name} has to take the argument lr"]
    if config.weight_decay and "weight_decay" not in known:
        problems.append(f"optimizer.weight_decay: {config.name} has none; say optimizer.weight_decay=0")
    return problems + _unknown(config, known - FIXED)


def argument_names(kind: Any) -> set[str]:  # Any: a class derived from torch.optim.Optimizer
    """Return the names of an optimizer's arguments. A class with `**kwargs` also takes the arguments of its base."""
    names: set[str] = set()
    for base in kind.__mro__:
        parameters = inspect.signature(base.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        has_kwargs = any(p.kind == p.VAR_KEYWORD for p in parameters)
        if not has_kwargs:
            break
    return names


def _unknown(config: OptimizerConfig, known: set[str]) -> list[str]:
    """Return an error message for each key of `kwargs` that is not in `known`."""
    reason = f"{config.name} has no such option; it has {', '.join(sorted(known))}"
    return [f"optimizer.kwargs.{key}: {reason}" for key in config.kwargs if key not in known]
