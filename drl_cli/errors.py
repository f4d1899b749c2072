"""The errors that end a command with lines for the user, and the exit codes of all commands."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from drl_cli.types import State
from drl_cli.utils.outside import raised, raised_by

DONE, BUG, USAGE, MISSING, USER_CODE, DIVERGED, LOST, RESOURCES, CHECKPOINT, BELOW, SWEEP = range(11)
TERMINATED, HUNG_UP, INTERRUPTED = 75, 129, 130

EXIT_CODES = {
    DONE: "done",
    BUG: "a bug in drl-cli",
    USAGE: "a wrong config or command",
    MISSING: "a missing package or missing hardware",
    USER_CODE: "your environment or algorithm failed",
    DIVERGED: "training diverged",
    LOST: "Ray, the trainer, replay or too many workers died",
    RESOURCES: "not enough disk space or memory",
    CHECKPOINT: "an incompatible checkpoint",
    BELOW: "a mean return below `min_return`",
    SWEEP: "failed jobs in a sweep",
    TERMINATED: "SIGTERM",
    HUNG_UP: "SIGHUP: the terminal was closed",
    INTERRUPTED: "Ctrl-C",
}
"""The meaning of every exit code. `drl-train --help` and docs/compatibility.md list this table."""

RUN_STATUS: dict[int, Literal["done", "diverged", "interrupted"]] = {
    DONE: "done",
    DIVERGED: "diverged",
    TERMINATED: "interrupted",
    HUNG_UP: "interrupted",
    INTERRUPTED: "interrupted",
}
"""The status of a run by exit code. With any other exit code, the run has failed."""


class ReportedError(Exception):
    """An error that ends a command without a traceback. Each line of `problems` is shown to the user."""

    exit_code = BUG

    def __init__(self, problems: Sequence[str] | str, exit_code: int | None = None) -> None:
        is_text = isinstance(problems, str)
        self.problems = problems.splitlines() if isinstance(problems, str) else list(problems)
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__(problems if is_text else "; ".join(problems))


def interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt during which an error was raised, or None: a library's cleanup may replace it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


class Refused(ValueError):
    """An algorithm can't run as configured; the message is shown to the user."""


class UsageError(ReportedError):
    """The command can't do what the user asked for."""

    exit_code = USAGE


class Problems:
    """Collects the UsageErrors of several checks, so that a command reports all of them at once."""

    def __init__(self) -> None:
        self.errors: list[UsageError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect a UsageError from the `with` block instead of raising it."""
        try:
            yield
        except UsageError as error:
            self.errors.append(error)

    def report(self) -> None:
        """If there are problems, raise one UsageError with all of them and their smallest exit code.

        Problems in the user's code come last.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            ordered = sorted(self.errors, key=lambda error: error.exit_code == USER_CODE)
            lines = dict.fromkeys(line for error in ordered for line in error.problems)
            raise UsageError([*lines], min(error.exit_code for error in ordered)) from ordered[0]


class RunError(ReportedError):
    """A run can't continue."""


class NotSaved(RunError):
    """The final weights could not be saved: the disk is full or broken, or, with exit code 6, manage died too often."""

    exit_code = RESOURCES


class EnvironmentFailed(RunError):
    """The user's environment raised an exception."""

    exit_code = USER_CODE


class AlgorithmFailed(RunError):
    """An algorithm from outside the package raised an exception, or its trainers have different parameters."""

    exit_code = USER_CODE


class UserCodeFailed(RunError):
    """A module of the user raised an exception: its policy, torso, optimizer, reward module or sampler, for example."""

    exit_code = USER_CODE


class AlgorithmRefused(RunError):
    """An algorithm can't run with its config."""

    exit_code = USAGE


class Diverged(RunError):
    """A loss or a parameter is NaN or infinite. `is_data` is True if a value in the columns `batch` is the cause."""

    exit_code = DIVERGED

    def __init__(self, message: str, batch: State | None = None, is_data: bool = False) -> None:
        self.batch, self.is_data = batch, is_data
        super().__init__(message)


class RoleLost(RunError):
    """A process died or stopped answering, and the allowed number of restarts is used up."""

    exit_code = LOST


class NodeGone(RoleLost):
    """The node for a role has left the cluster."""


class OutOfMemory(RunError):
    """The memory of the machine or of a GPU is full."""

    exit_code = RESOURCES


class CheckpointError(RunError):
    """A checkpoint is missing, damaged, or belongs to another run. The message names the file."""

    exit_code = CHECKPOINT


class ClusterUnfit(RunError):
    """The cluster that the user named can't be joined, or can't run this config."""

    exit_code = USAGE


NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|ALLOC_FAILED")
"""What torch, CUDA and its libraries write in a RuntimeError if memory is full."""


def memory_problem(error: BaseException) -> str | None:
    """Return a line with advice if the error means that the memory of the machine or of a GPU is full, else None."""
    text = str(error).partition("\n")[0]
    if not (isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(text))):
        return None
    reason = ". ".join(text.split(". ")[:3]).rstrip(".") or type(error).__name__  # CUDA adds how to set its allocator
    if re.search("CUDA|CUBLAS|HIP", text):
        advice = "lower trainer.batch_size or network.hidden, end other programs on the GPU, or say device=cpu"
    else:
        advice = "lower replay.capacity, trainer.batch_size or worker.num, or end other programs"
    return f"memory is full: {reason}; {advice}"


@contextmanager
def as_usage_error(*kinds: type[Exception], prefix: str = "", exit_code: int | None = None) -> Iterator[None]:
    """Turn an exception of these kinds into a UsageError with the same text after `prefix`."""
    try:
        yield
    except kinds as error:
        raise UsageError(f"{prefix}{error}", exit_code) from error


@contextmanager
def users_errors(modules: Sequence[str]) -> Iterator[None]:
    """Turn an exception that one of the user's `modules` raised into a UsageError with exit code 4.

    Turn an error of full memory into a UsageError with exit code 7.
    """
    try:
        yield
    except ReportedError:
        raise
    except Exception as error:
        if line := memory_problem(error):
            raise UsageError(line, RESOURCES) from error
        if (module := raised_by(error, modules)) is None:
            raise
        raise UsageError(f"{module} {raised(error)}", USER_CODE) from error
