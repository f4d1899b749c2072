"""NetworkConfig: the options of the networks of the actor and the critics."""

from dataclasses import dataclass
from typing import Annotated, Literal

from drl_cli.utils.ranges import Count, NameOrClass, Positive, Range

Activation = Literal["relu", "tanh", "elu"]
TORSOS = ("auto", "mlp", "cnn", "resnet", "multi")


@dataclass(frozen=True)
class NetworkConfig:
    """Options of a network, explained in conf/network: observation -> torso -> memory -> hidden layers -> outputs."""

    hidden: tuple[Count, ...]
    activation: Activation
    init: Literal["uniform", "orthogonal"]
    layer_norm: bool = False
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    torso: Annotated[str, NameOrClass(TORSOS)] = "auto"
    torso_activation: Activation = "relu"
    channels: Positive = 1.0
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: Count = 256

    @property
    def state_size(self) -> int:
        """Length of the recurrent state of one environment or sequence; 0 without a memory."""
        return {"none": 0, "gru": 1, "lstm": 2}[self.memory] * self.memory_size
