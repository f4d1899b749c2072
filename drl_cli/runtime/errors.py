"""How a run can end badly; each kind has the exit code of the user's guide."""

from collections.abc import Sequence

from drl_cli.types import State


class RunError(Exception):
    """A run that can't go on; the message is for the user."""

    exit_code = 1


class EnvironmentFailed(RunError):
    """The user's environment raised."""

    exit_code = 4


class AlgorithmFailed(RunError):
    """An algorithm from outside the package raised, or its trainers drifted apart."""

    exit_code = 4


class AlgorithmRefused(RunError):
    """An algorithm can't run as it is configured."""

    exit_code = 2


class Diverged(RunError):
    """A loss or a parameter is NaN or infinite.

    `batch` are the columns of the update that went wrong, `is_data` tells whether a value in them was at fault.
    """

    exit_code = 5

    def __init__(self, message: str, batch: State | None = None, is_data: bool = False) -> None:
        self.batch, self.is_data = batch, is_data
        super().__init__(message)


class RoleLost(RunError):
    """A process died or stopped answering, beyond what restarts make up for."""

    exit_code = 6


class CheckpointError(RunError):
    """A checkpoint that is missing, damaged, or not of this run; the message names the file."""

    exit_code = 8


class NodeGone(RoleLost):
    """The node that a role should run on has left the cluster."""


class ClusterUnfit(RunError):
    """The cluster that the user named can't be joined or can't run this; each problem is a line."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))
