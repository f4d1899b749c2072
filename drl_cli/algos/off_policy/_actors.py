"""A policy and checks that off-policy algorithms for continuous actions share."""

from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import Refused
from drl_cli.losses.distributions import TanhGaussian
from drl_cli.losses.policy import LOG_STD_MAX, LOG_STD_MIN
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.context import Context
from drl_cli.types import Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor

Random = dict[str, Any]  # Any: a tensor, or a list of tensors
"""The random numbers of one loss function, by name.

`action` is standard normal noise for one action `[B, A]`, or for S actions `[B, S A]`, in each row. `masks` and
`target_masks` are the dropout masks of the critics and of their target networks. An algorithm's method `draw` or
`update` may add other random numbers.
"""


class SquashedPolicy(NetworkPolicy):
    """The stochastic actor of SAC: the action is the tanh of a sample from a Gaussian.

    The network has 2 outputs for each dimension of the action: mean and log standard deviation of the Gaussian.
    """

    is_squashed = True
    outputs = 2

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        mean, log_std = out[:, : self.action.size], out[:, self.action.size :]
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))  # faster than `np.clip`
        noise = self.rng.standard_normal((len(mean), self.action.size), np.float32)
        return {"action": np.tanh(mean + std * noise), **memory}


def check_batch_norm(config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
    """Raise Refused if options of the network do not fit batch norm in critics."""
    if network.layer_norm:
        raise Refused(f"network.layer_norm=true: {config.name} has batch norm; say network.layer_norm=false")
    if network.dropout:
        raise Refused(f"network.dropout={network.dropout:g}: {config.name} has batch norm; say network.dropout=0")
    if network.memory != "none":
        raise Refused(
            f"network.memory={network.memory}: the batch norm of {config.name} would see the padding of sequences; "
            "say network.memory=none"
        )


def check_one_trainer(name: str, context: Context) -> None:
    """Raise Refused if there are several trainers, because the batch norm of each would see only some of the rows."""
    if (num := context.group.size) > 1:
        raise Refused(f"trainer.num={num}: the batch statistics of {name} need all rows; say trainer.num=1")


def squashed(out: Tensor) -> TanhGaussian:
    """Convert an actor's outputs `[B, 2 A]`, means and log standard deviations, to the distribution of its actions."""
    mean, log_std = out.chunk(2, -1)
    return TanhGaussian(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))


def check_support(atoms: int, v_min: float, v_max: float) -> None:
    """Raise Refused if `atoms` values from `v_min` to `v_max` cannot be the support of a categorical distribution."""
    if atoms < 2 or v_min >= v_max:
        raise Refused(f"algo.atoms={atoms} has to be at least 2, and algo.v_min={v_min:g} below algo.v_max={v_max:g}")
