"""NetworkConfig: the options of the networks of the actor and the critics."""

from dataclasses import dataclass
from typing import Annotated, Literal

from drl_cli.utils.ranges import Count, Positive, Range, name_or_class

Activation = Literal["relu", "tanh", "elu"]
TORSOS = ("auto", "mlp", "cnn", "resnet", "multi")
"""The names for `network.torso`. Any other value is the import path of a user's class."""


@dataclass(frozen=True)
class NetworkConfig:
    """Options of a network, which conf/network explains.

    Observations pass the torso (such as a CNN), the memory (an LSTM or a GRU), the hidden layers and the output layer.
    """

    hidden: tuple[Count, ...]
    activation: Activation
    init: Literal["uniform", "orthogonal"]
    layer_norm: bool = False
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    torso: Annotated[str, name_or_class(*TORSOS)] = "auto"
    torso_activation: Activation = "relu"
    channels: Positive = 1.0
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: Count = 256

    @property
    def state_size(self) -> int:
        """The length of the recurrent state of one environment or sequence; 0 without a memory."""
        num_vectors = {"none": 0, "gru": 1, "lstm": 2}[self.memory]  # hidden vector, and an LSTM's cell vector
        return num_vectors * self.memory_size
