"""How a run can end badly; each kind has the exit code of the user's guide."""


class RunError(Exception):
    """A run that can't go on; the message is for the user."""

    exit_code = 1


class EnvironmentFailed(RunError):
    """The user's environment raised."""

    exit_code = 4


class Diverged(RunError):
    """A loss or a parameter is NaN or infinite."""

    exit_code = 5


class RoleLost(RunError):
    """A process died or stopped answering, beyond what restarts make up for."""

    exit_code = 6
