"""The options of the optimizer, in a separate file, because checking a command line must not import torch."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Fraction, Natural, NonNegative, Positive

Name: TypeAlias = Literal[
    "adam", "adamw", "rmsprop", "sgd", "nadam", "radam", "adamax", "adagrad", "adadelta", "adafactor", "asgd", "rprop"
]
_CAPITALS = {"rmsprop": "RMSprop", "sgd": "SGD", "asgd": "ASGD", "adamw": "AdamW", "nadam": "NAdam", "radam": "RAdam"}
"""Names of torch.optim classes that have more than one capital letter."""
OPTIMIZERS: Mapping[str, str] = {name: _CAPITALS.get(name, name.capitalize()) for name in get_args(Name)}
"""Class names of torch.optim, by `optimizer.name`: all classes that work on flat tensors."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Options of the optimizer, except the learning rates, which are options of the algorithm."""

    name: Name = "adam"
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Natural = 0
    end: Fraction = 0.0
    max_norm: Positive | None = None
    weight_decay: NonNegative = 0.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: arguments of the torch.optim class

    def factor(self, env_steps: int, total_env_steps: int) -> float:
        """Return the factor by which all learning rates are multiplied after `env_steps` environment steps.

        The factor grows linearly from 0 to 1 during the warm-up. Then it stays 1, or falls until it is `end` at the end
        of the run, linearly or along half a cosine (Loshchilov & Hutter 2017, arXiv 1608.03983, eq. 5).
        """
        if env_steps < self.warmup_steps:
            return (env_steps + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (env_steps - self.warmup_steps) / max(1, total_env_steps - self.warmup_steps))
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.end + (1.0 - self.end) * left


def option_problems(config: OptimizerConfig) -> list[str]:
    """Return an error line for each option that is set but unknown to the optimizer (`kwargs`, `weight_decay`)."""
    problems = []
    if config.name in ("adam", "adamw"):
        known = {"betas", "eps"}
    elif config.kwargs or config.weight_decay:  # only this case has to import torch
        kind = getattr(torch.optim, OPTIMIZERS[config.name])
        fixed = {"self", "params", "lr", "weight_decay", "foreach", "maximize", "capturable", "differentiable", "fused"}
        names = inspect.signature(kind).parameters.keys()
        known = names - fixed
        if config.weight_decay and "weight_decay" not in names:
            problems.append(f"optimizer.weight_decay: {config.name} has none; say optimizer.weight_decay=0")
    else:
        return problems
    has = f"{config.name} has no such option; it has {', '.join(sorted(known))}"
    return problems + [f"optimizer.kwargs.{key}: {has}" for key in config.kwargs if key not in known]
