"""Errors of the user's code. They are recognised in the process that runs the code, where an error has its stack."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from drl_cli.errors import OutOfMemory, RunError, UserCodeFailed, memory_problem
from drl_cli.optim.group import PeerLost
from drl_cli.utils.outside import raised, raised_by


@contextmanager
def naming_users(modules: Collection[str]) -> Iterator[None]:
    """Turn an exception that one of the user's `modules` raised into UserCodeFailed, which every process can unpickle.

    An error of full memory becomes OutOfMemory. A RunError and the loss of a trainer stay as they are.
    """
    try:
        yield
    except (RunError, PeerLost):
        raise
    except Exception as error:
        if line := memory_problem(error):
            raise OutOfMemory(line) from error
        if (module := raised_by(error, modules)) is None:
            raise
        raise UserCodeFailed(f"{module} {raised(error)}") from error
