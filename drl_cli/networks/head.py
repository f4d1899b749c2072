"""Head: the description of an exported policy's network: torso, memory, and the arrays of the MLPs after them."""

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
    """The network of a policy: torso, memory, `trunk`, and `layers`.

    `trunk` and `layers` are MLPs, given as lists of arrays: weight and bias of each layer and, with layer norm, gain
    and bias of each norm. An activation follows the trunk; with `norms_trunk` (MR.Q), a norm comes before it. Some
    algorithms need more:

    - `embedded` `[K, W]` (IQN): The input of `layers` is `embedded` times the activated output of the trunk. The value
      of an action is the mean of its K outputs.
    - `support` `[K]` (C51): The outputs are K logits for each action. The value of an action is the mean of the
      distribution, weighted by `risk` (drl_cli.losses.distributional.risky_share).
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
