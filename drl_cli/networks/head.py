"""Describe the network of an exported policy: torso, memory, and the arrays of the MLPs after them."""

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

    `trunk` and `layers` are MLPs: weights, biases, and after a hidden layer the two vectors of layer norm. The output
    of the trunk is activated, and normalised before that if `norms_trunk` (MR.Q). With `embedded` `[K, W]` (IQN), the
    input of `layers` is `embedded` times the activated output of the trunk, and the value is the mean of the K outputs.
    With a `support` `[K]` (C51), the outputs are K logits per action, and the value is the mean of the distribution,
    weighted by `risk` (drl_cli.losses.distributional.risky_share). With `components` K > 1 (BC), the outputs are K
    actions and then K logits, and the action with the largest logit is chosen.
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
