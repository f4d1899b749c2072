"""Distributed deep reinforcement learning from the command line.

From Python there are `load`, which gives a run's trained policy, and `train`. Importing this imports nothing else.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drl_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from drl_cli.deploy.policy import TrainedPolicy


def load(run: str = "latest", checkpoint: str | int = "best", output_dir: str = "outputs") -> "TrainedPolicy":
    """The trained policy of a run: `policy(obs)` gives the best action, both in the environment's own units.

    `run` is a path, `latest`, a glob or the start of a run id below output_dir, `checkpoint` is best, last, a number of
    env steps or the name of a checkpoint's folder. Raises UsageError.
    """
    from drl_cli.deploy.trained import open_trained

    return open_trained(run, str(checkpoint), output_dir).policy()


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """Train as `drl-train` with these `key=value` strings does; returns the summary, as summary.json has it.

    Raises UsageError for what is wrong with the config, RunFailed when the run ended with another exit code than 0,
    KeyboardInterrupt after Ctrl-C, with the checkpoint saved.
    """
    from drl_cli.cli.from_python import train

    return train(overrides)


def __getattr__(name: str) -> Any:  # Any: a class
    """The exceptions, imported when they are asked for."""
    if name == "UsageError":
        from drl_cli.errors import UsageError

        return UsageError
    if name == "RunFailed":
        from drl_cli.cli.from_python import RunFailed

        return RunFailed
    raise AttributeError(f"module 'drl_cli' has no attribute {name!r}")
