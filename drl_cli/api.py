"""Everything that you need to write your own algorithm: `import drl_cli.api as drl`.

Derive `Config` from `AlgoConfig`, `Policy` from `TorchPolicy` (or from `Policy`) and `Algorithm` from `Algorithm`. Hold
your networks in `Params`, change them with an `Optimizer`, and return an `Update` from `update`. `torso` makes the
first module of a network for any kind of observation. Types such as `Positive` and `Fraction` check the options'
values.

docs/add-an-algorithm.md shows a complete algorithm. Importing this module does not import torch.
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
