"""Distributed deep reinforcement learning from the command line.

In Python, `load` returns the trained policy of a run, and `train` trains. Importing drl_cli does not import torch.
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drl_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from drl_cli.deploy.policy import TrainedPolicy


def load(
    run: str = "latest",
    checkpoint: str | int = "best",
    output_dir: str = "outputs",
    simulations: int | None = None,
    trust: bool = False,
) -> "TrainedPolicy":
    """Return the trained policy of a run. `policy(obs)` returns the best action, in the environment's own units.

    `run` is a path, `latest`, a glob, or the start of the id or the name of a run below output_dir. `checkpoint` is
    best, last, a number of env steps, or the name of a checkpoint folder. `simulations` replaces
    the number of simulations of a policy that searches; 0 plays the prior. `trust` is needed once for a run of somebody
    else whose config names modules: they run as you. Raise UsageError if the checkpoint is missing or can't be loaded.
    """
    from drl_cli.deploy.trained import open_policy

    return open_policy(run, str(checkpoint), output_dir, simulations, trust)


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """Train as `drl-train` does with these `key=value` strings. Return the content of summary.json.

    Raise UsageError if the config is wrong, and RunFailed if the run ended with an exit code other than 0. After Ctrl-C
    a checkpoint is saved and KeyboardInterrupt is raised.
    """
    from drl_cli.cli.from_python import train

    return train(overrides)


def __getattr__(name: str) -> Any:  # Any: an exception class
    """Import the exceptions when they are first used."""
    homes = {"UsageError": "drl_cli.errors", "RunFailed": "drl_cli.cli.from_python"}
    if name not in homes:
        raise AttributeError(f"module 'drl_cli' has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
