"""What an algorithm outside the package is written with: `import drl_cli.api as drl`. Imports no torch.

docs/add-an-algorithm.md shows a whole one.
"""

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Policy, Update
from drl_cli.algos.policy import RandomActions, TorchPolicy
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.torsos import torso
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params, Refused
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.ranges import Count, Fraction, Natural, NonNegative, Positive, Range

__all__ = [
    "AlgoConfig",
    "Algorithm",
    "Array",
    "Batch",
    "Columns",
    "Context",
    "Count",
    "Counts",
    "EnvSpec",
    "Fraction",
    "Natural",
    "NetworkConfig",
    "NonNegative",
    "Obs",
    "Optimizer",
    "Params",
    "Policy",
    "Positive",
    "PreviousStep",
    "RandomActions",
    "Range",
    "Refused",
    "TorchPolicy",
    "Update",
    "torso",
]
