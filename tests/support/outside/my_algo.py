"""DQN as in a user's module: no yaml, defaults in the Config, only one constant."""

from dataclasses import dataclass
from typing import Annotated, Literal

from drl_cli.algos.value import dqn
from drl_cli.algos.value.dqn import Algorithm, Policy
from drl_cli.api import Count, Fraction, Positive, Range

__all__ = ["ACTIONS", "EXPLORATION", "Algorithm", "Config", "Policy"]

ACTIONS = ("discrete",)
EXPLORATION = ("epsilon",)


@dataclass(frozen=True)
class Config(dqn.Config):
    """Every option of DQN with a default, and one unused option."""

    lr: Positive = 1e-3
    double: bool = True
    loss: Literal["huber", "mse"] = "huber"
    target_period: Count = 20
    epsilon_start: Fraction = 1.0
    epsilon_end: Fraction = 0.05
    epsilon_steps: Count = 100
    margin: Annotated[float, Range(most=2)] = 1.0
