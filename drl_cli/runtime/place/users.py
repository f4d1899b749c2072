"""Errors of the user's code. They are recognised in the process that runs the code, where an error has its stack."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from drl_cli.errors import RunError, UserCodeFailed
from drl_cli.optim.group import PeerLost
from drl_cli.utils.outside import raised, raised_by


@contextmanager
def naming_users(modules: Collection[str]) -> Iterator[None]:
    """Turn an exception that one of the user's `modules` raised into UserCodeFailed, which every process can unpickle.

    Exceptions for which a run ends in another way stay as they are: a RunError, a lost trainer, too little memory.
    """
    try:
        yield
    except (RunError, PeerLost, MemoryError):
        raise
    except Exception as error:
        if (module := raised_by(error, modules)) is None:
            raise
        raise UserCodeFailed(f"{module} {raised(error)}") from error
