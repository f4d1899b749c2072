"""Return a small network config with these changes."""

import dataclasses

from drl_cli.networks.config import NetworkConfig


def network(**changes):
    return dataclasses.replace(NetworkConfig((16, 12), "relu", "uniform"), **changes)
