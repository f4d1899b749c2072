"""Which optimizer: apart from optimizer.py, so that checking a command line does not import torch."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Fraction, Natural, NonNegative, Positive

OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
    "nadam": "NAdam",
    "radam": "RAdam",
    "adamax": "Adamax",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adafactor": "Adafactor",
    "asgd": "ASGD",
    "rprop": "Rprop",
}
"""The classes of torch.optim that work on flat tensors, by `optimizer.name`."""

Name: TypeAlias = Literal[
    "adam", "adamw", "rmsprop", "sgd", "nadam", "radam", "adamax", "adagrad", "adadelta", "adafactor", "asgd", "rprop"
]


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients change parameters; the learning rates are the algorithm's."""

    name: Name = "adam"
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Natural = 0
    end: Fraction = 0.0
    max_norm: Positive | None = None
    weight_decay: NonNegative = 0.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: whatever the class of torch.optim takes

    def factor(self, env_steps: int, total_env_steps: int) -> float:
        """What the learning rates are multiplied by after so many of all environment steps.

        Linear from 0 during the warm-up; then constant, or down to `end` at the end of the run, in a line or by half a
        cosine (Loshchilov & Hutter 2017, arXiv 1608.03983, eq. 5).
        """
        if env_steps < self.warmup_steps:
            return (env_steps + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (env_steps - self.warmup_steps) / max(1, total_env_steps - self.warmup_steps))
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.end + (1.0 - self.end) * left


def option_problems(config: OptimizerConfig) -> list[str]:
    """What is wrong with `optimizer.kwargs` and what goes with them, a line each; imports torch where it has to."""
    problems = []
    if config.name in ("adam", "adamw"):
        known = {"betas", "eps"}
    elif config.kwargs or config.weight_decay:
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
