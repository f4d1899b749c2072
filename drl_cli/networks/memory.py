"""What a policy remembers from step to step, in one vector for each row. Needs no torch until a memory is made."""

from typing import TYPE_CHECKING

from drl_cli.networks.config import NetworkConfig

if TYPE_CHECKING:
    from torch import Generator

    from drl_cli.networks.recurrent import Memory


def make_memory(network: NetworkConfig, inputs: int, generator: "Generator") -> "Memory":
    """The memory `network.memory` of so many inputs, initialised by `network.init` from the generator."""
    from drl_cli.networks import modules, recurrent  # they need torch

    assert network.memory != "none"
    with modules.seeded(generator):
        return recurrent.Memory(network, inputs)
