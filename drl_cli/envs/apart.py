"""Try an environment in a child process, so that an environment that aborts or hangs does not end the command."""

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn, TypeVar

import gymnasium

from drl_cli.envs.catalog import games
from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.faults import Tick, no_tick
from drl_cli.envs.make import read_spec
from drl_cli.envs.trial import Trial, try_env
from drl_cli.types import EnvSpec
from drl_cli.utils.outside import bare_import, innermost_last, place, raised

T = TypeVar("T")

PR_SET_PDEATHSIG = 1  # Linux's prctl option: the signal that a process gets when its parent ends
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
CALL_BYTES = 256
"""The child's file begins with its running call in this number of bytes. Python's traceback follows."""
TRIAL_S = 2.0
"""For how long `trial_apart` steps an environment, at most."""
FLUSH_S = 5.0
"""Maximum time [s] for printing the child's texts at its end."""


class ProcessEnded(EnvFault):
    """The environment ended the process that tried it, or it hung."""


def spec_apart(config: EnvConfig, trains: bool, timeout_s: float) -> EnvSpec:
    """Return `read_spec(config, trains)`. Raise ProcessEnded if the environment aborts, or hangs for `timeout_s`."""
    try:
        spec = apart(config, timeout_s, lambda tick: read_spec(config, trains, tick))
    except SystemExit as error:
        raise EnvFault(f"{config.id} {raised(error)}") from error
    if ":" in config.id:
        bare_import(config.id.partition(":")[0])  # so that the next child need not import the module
    return spec


def try_apart(
    config: EnvConfig, spec: EnvSpec, *, num: int, seconds: float, timeout_s: float, is_thorough: bool = False
) -> list[str]:
    """Return the warnings of `try_env`. Raise EnvFault, or ProcessEnded if the environment aborts or hangs."""

    def call(tick: Tick) -> list[str]:
        limit_s = timeout_s if tick is no_tick else None  # the child's `tick` ends a call that takes too long
        return try_env(config, spec, num=num, seconds=seconds, timeout_s=limit_s, tick=tick, is_thorough=is_thorough)

    return apart(config, timeout_s, call)


class Seen(NamedTuple):
    """What a trial shows of an environment.

    These are steps/s, whether its observations have an unusual size, whether its rewards are sparse, its time limit in
    steps, and whether no episode ended and nothing limits one. The limit is None if the environment does not declare
    one and if no episode was truncated.
    """

    steps_per_s: float
    is_unusual: bool
    is_sparse: bool
    limit: int | None
    is_endless: bool


def trial_apart(config: EnvConfig, spec: EnvSpec, timeout_s: float) -> Seen:
    """Take random steps in one environment. Raise what the environment raises, or ProcessEnded."""

    def call(tick: Tick) -> Seen:
        trial = Trial(config, spec, 0, tick)
        try:
            trial.run(1, TRIAL_S)
        finally:
            trial.close()
        sizes, limit = trial.sizes, spec.time_limit or trial.cut_after
        return Seen(trial.steps_per_s, sizes.is_unusual, sizes.is_sparse, limit, trial.is_endless)

    return apart(config, timeout_s, call)


def apart(config: EnvConfig, timeout_s: float, call: Callable[[Tick], T]) -> T:
    """Return `call(tick)`. Unless the environment `is_shipped`, a child process makes the call first.

    Raise ProcessEnded if the child ends early or a call of the environment takes longer than `timeout_s`. If the call
    raises in the child, this process repeats the call, so that the error has its traceback. Only Linux has the child,
    because other systems can't fork safely.
    """
    if is_shipped(config) or sys.platform != "linux":
        return call(no_tick)
    answer, notes = (os.memfd_create(name) for name in ("answer", "notes"))
    try:
        status = _wait(_fork(call, answer, notes, timeout_s))
        result, text = _content(answer), _content(notes)
    finally:
        os.close(answer)
        os.close(notes)
    if not result:
        raise ProcessEnded(_cause(text.decode(errors="replace"), status, timeout_s))
    values: list[T] = pickle.loads(result)
    return values[0] if values else call(no_tick)


def is_shipped(config: EnvConfig) -> bool:
    """Return whether drl-cli, Gymnasium or EnvPool has the environment, and no wrapper of the user changes it."""
    if config.wrappers:
        return False
    if config.backend == "envpool" or config.id in games():
        return True
    registration = gymnasium.registry.get(config.id)
    entry = config.id if registration is None else registration.entry_point
    return isinstance(entry, str) and entry.startswith(("drl_cli.", "gymnasium."))


def _fork(call: Callable[[Tick], T], answer: int, notes: int, timeout_s: float) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of a fork beside threads, which the child does not use
        child = os.fork()
    if child == 0:
        _answer(call, answer, notes, timeout_s)
    return child


def _wait(child: int) -> int:
    """Wait for the child and return its exit code, or minus its signal. End the processes that it started."""
    with suppress(OSError):  # the child has ended, or has done the same
        os.setpgid(child, child)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)


def _answer(call: Callable[[Tick], object], answer: int, notes: int, timeout_s: float) -> NoReturn:
    """Make the call in the child, and write [value], or [] if the call raised, to the file `answer`."""
    try:
        _begin(notes)
        values = [call(ticks(notes, timeout_s))]
    except BaseException:
        values = []
    try:
        faulthandler.cancel_dump_traceback_later()
        os.write(answer, pickle.dumps(values))
        faulthandler.dump_traceback_later(FLUSH_S, exit=True, file=notes)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _begin(notes: int) -> None:
    """Set up the child: it ends with its parent, answers signals as usual, and writes its traceback if it aborts."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # reading the terminal would stop a process in the background
    faulthandler.disable()
    for number in (signal.SIGINT, signal.SIGTERM, *CRASHES):  # Ray's handlers of crashes would print their stacks
        signal.signal(number, signal.SIG_DFL)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # a fork has none of the parent's OpenMP threads, and would wait for them
    os.lseek(notes, CALL_BYTES, os.SEEK_SET)
    faulthandler.enable(notes, all_threads=False)


def ticks(notes: int, timeout_s: float) -> Tick:
    """Return the child's `tick`: it notes each call of the environment, and ends the process if a call takes too long.

    The timer is only set again after an eighth of `timeout_s`, because this takes longer than a small environment's
    step.
    """
    began = -float("inf")

    def tick(name: str) -> None:
        nonlocal began
        os.pwrite(notes, name.encode()[:CALL_BYTES].ljust(CALL_BYTES), 0)
        moment = time.monotonic()
        if moment - began > timeout_s / 8:
            began = moment
            faulthandler.dump_traceback_later(timeout_s * 9 / 8, exit=True, file=notes)

    return tick


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _cause(notes: str, status: int, timeout_s: float) -> str:
    """Return the message about a child that ended with this exit code, or minus its signal, without an answer."""
    name, _, when = notes[:CALL_BYTES].strip().partition(", ")
    trace = notes[CALL_BYTES:]
    if trace.startswith("Timeout"):
        cause = f"hung for more than {timeout_s:g} s (worker.step_timeout_s)"
    elif status >= 0:
        cause = f"ended the process with exit code {status}"
    else:
        cause = f"ended the process by {signal.Signals(-status).name} ({signal.strsignal(-status)})"
    return f"{name} {cause}{place(innermost_last(trace))}{when and f', {when}'}"
