"""Head: describes the network of a policy, so that the policy can be exported."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drl_cli.networks.config import Activation
from drl_cli.types import Array

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.networks.modules import Memory


@dataclass(frozen=True, kw_only=True)
class Head:
    """Describes the network of a policy. Observations pass the torso, the memory, the MLP `trunk` and the MLP `layers`.

    The list of an MLP has the weight and the bias of each layer. With layer norm, the gain and the bias of the norm
    follow those of each hidden layer. If there is a trunk, the activation follows it. With `norms_trunk` (MR.Q), a norm
    without parameters comes between the trunk and its activation. `is_squashed` applies tanh to the outputs. Some
    algorithms need more:

    - `embedded` `[K, W]` (IQN): The input of `layers` is `embedded` times the output of the trunk's activation. The
      value of an action is the mean of its K outputs.
    - `support` `[K]` (C51): The outputs are K logits for each action. The value of an action is the mean of the
      distribution, weighted by `risk` (drl_cli.losses.distributional.distorted_cumulative).
    - `components` K > 1 (BC): The outputs are K actions, followed by K logits. The policy chooses the action with the
      largest logit.
    """

    torso: "nn.Module"
    memory: "Memory | None"
    layers: Sequence[Array]
    activation: Activation
    layer_norm: bool
    is_squashed: bool = False
    trunk: Sequence[Array] = ()
    trunk_activation: Activation = "relu"
    norms_trunk: bool = False
    embedded: Array | None = None
    support: Array | None = None
    risk: tuple[str, float] = ("mean", 1.0)
    components: int = 1
