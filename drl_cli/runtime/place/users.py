"""Errors of the user's code. They are recognised in the process that runs the code, where an error has its stack."""

from collections.abc import Collection

from drl_cli.chains.process_group import PeerLost
from drl_cli.errors import OutOfMemory, RunError, UserCodeFailed, memory_problem
from drl_cli.utils.outside import raised, raised_by


def named(error: Exception, modules: Collection[str]) -> Exception:
    """Return UserCodeFailed for an error that one of the user's `modules` raised: every process can unpickle it.

    An error of full memory becomes OutOfMemory. All other errors stay as they are.
    """
    if isinstance(error, RunError | PeerLost):
        return error
    found: Exception = error
    if line := memory_problem(error):
        found = OutOfMemory(line)
    elif (module := raised_by(error, modules)) is not None:
        found = UserCodeFailed(f"{module} {raised(error)}")
    if found is not error:
        found.__cause__ = error
    return found
