"""Everything that you need to write your own algorithm: `import drl_cli.api as drl`.

Derive `Config` from `AlgoConfig`, `Policy` from `TorchPolicy` (or from `Policy`) and `Algorithm` from `Algorithm`. Hold
your networks in `Params`, change them with an `Optimizer`, and return an `Update` from `update`. `torso` makes the
first module of a network for any kind of observation. `losses` has losses and targets, and `search` has tree searches
with a learned model; `Categorical`, `Gaussian` and others are distributions of actions. Types such as `Positive` and
`Fraction` check the options' values. `torch` and `nn` are the modules of torch, imported when they are first used.

docs/add-an-algorithm.md shows a complete algorithm. Importing this module does not import torch.
"""

from typing import TYPE_CHECKING, Any

from drl_cli.algos import context as _context
from drl_cli.algos.algorithm import Algorithm as Algorithm
from drl_cli.algos.base import AlgoConfig as AlgoConfig
from drl_cli.algos.base import Batch as Batch
from drl_cli.algos.base import Counts as Counts
from drl_cli.algos.base import Metrics as Metrics
from drl_cli.algos.base import Policy as Policy
from drl_cli.algos.base import Update as Update
from drl_cli.algos.noise import Noise as Noise
from drl_cli.algos.noise import OUNoise as OUNoise
from drl_cli.algos.noise import PinkNoise as PinkNoise
from drl_cli.algos.noise import Repeats as Repeats
from drl_cli.algos.reward_stream import Reward as Reward
from drl_cli.algos.reward_stream import RewardStream as RewardStream
from drl_cli.algos.rollout import Rollouts as Rollouts
from drl_cli.algos.torch_policy import RandomActions as RandomActions
from drl_cli.algos.torch_policy import TorchPolicy as TorchPolicy
from drl_cli.errors import Refused as Refused
from drl_cli.losses import public
from drl_cli.losses.distributions import Categorical as Categorical
from drl_cli.losses.distributions import Deterministic as Deterministic
from drl_cli.losses.distributions import Distribution as Distribution
from drl_cli.losses.distributions import EpsilonGreedy as EpsilonGreedy
from drl_cli.losses.distributions import Gaussian as Gaussian
from drl_cli.losses.distributions import GaussianMixture as GaussianMixture
from drl_cli.losses.distributions import MultiCategorical as MultiCategorical
from drl_cli.losses.distributions import TanhGaussian as TanhGaussian
from drl_cli.losses.distributions import distribution as distribution
from drl_cli.losses.policy import permitted as permitted
from drl_cli.networks.acting import NUMPY_FORMS as _NUMPY_FORMS
from drl_cli.networks.acting import network_class as _network_class
from drl_cli.networks.config import NetworkConfig as NetworkConfig
from drl_cli.networks.encoder import action_mask as action_mask
from drl_cli.networks.encoder import encoder as encoder
from drl_cli.networks.torsos import torso as torso
from drl_cli.optim.gradients import Gradients as Gradients
from drl_cli.optim.gradients import Nets as Nets
from drl_cli.optim.optimizer import Optimizer as Optimizer
from drl_cli.optim.optimizer_config import Part as Part
from drl_cli.optim.params import Params as Params
from drl_cli.types import Array as Array
from drl_cli.types import Column as Column
from drl_cli.types import Columns as Columns
from drl_cli.types import EnvSpec as EnvSpec
from drl_cli.types import Obs as Obs
from drl_cli.types import PreviousStep as PreviousStep
from drl_cli.types import Schema as Schema
from drl_cli.utils.deferred import nn as nn
from drl_cli.utils.deferred import torch as torch
from drl_cli.utils.ranges import Count as Count
from drl_cli.utils.ranges import Fraction as Fraction
from drl_cli.utils.ranges import Natural as Natural
from drl_cli.utils.ranges import NonNegative as NonNegative
from drl_cli.utils.ranges import Positive as Positive
from drl_cli.utils.ranges import Range as Range
from drl_cli.utils.run_clock import linear as linear

Context = _context.AlgoContext
losses = public

if TYPE_CHECKING:
    from drl_cli.networks.mlp_module import MLP as MLP
    from drl_cli.networks.mlp_module import Critic as Critic
    from drl_cli.networks.mlp_module import Embedding as Embedding
    from drl_cli.networks.mlp_module import Network as Network
    from drl_cli.networks.mlp_module import Scalar as Scalar
    from drl_cli.networks.mlp_module import Vector as Vector
    from drl_cli.networks.q_module import ImplicitQNetwork as ImplicitQNetwork
    from drl_cli.networks.q_module import QNetwork as QNetwork
    from drl_cli.search import run

    search = run
else:  # so that a type checker refuses a misspelt name

    def __getattr__(name: str) -> Any:  # Any: a class of torch modules or a module, whose file imports torch
        if name == "search":
            from drl_cli.search import run

            return run
        if name in _NUMPY_FORMS:
            return _network_class(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
