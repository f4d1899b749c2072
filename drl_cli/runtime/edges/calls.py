"""Calls: the pending answers of the roles. The orchestrator waits only here."""

from collections.abc import Callable, Collection, Container, Mapping
from typing import Any, TypeVar

from drl_cli.errors import RoleLost
from drl_cli.runtime.place.handles import ActorDied, Handle, ObjectLost, Ref, get, wait
from drl_cli.utils.clock import now

T = TypeVar("T")
GRACE_S = 10.0
"""The time [s] within which Ray reports the death of a process."""
LOOK_S = 0.5
"""The longest wait [s] for an answer. Then the caller looks whether a process hangs."""
START_S = 60.0
"""Additional time [s] for the first answer of a process, which must start and import modules first."""


class Calls:
    """Maps the reference of each pending answer to the role that answers and to the function that handles the answer.

    Nothing waits for the answers in `quiet`. They need not end a wait, because waking up takes 0.2 ms of processor
    time. A role is considered lost if its first answer takes longer than `stall_s + START_S`, or a later answer takes
    longer than `stall_s`.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.pending: dict[Ref[Any], tuple[str, Callable[[Ref[Any]], object], float]] = {}
        self.quiet: set[Ref[Any]] = set()
        self.answered: set[str] = set()

    def expect(self, ref: Ref[T], role: str, react: Callable[[Ref[T]], object], *, quiet: bool = False) -> None:
        """Add a pending answer of a role. When the answer is ready, `react` is called with its reference."""
        self.pending[ref] = (role, react, now())
        if quiet:
            self.quiet.add(ref)

    def react(
        self, others: Collection[Ref[Any]], timeout_s: float, patient: Container[Ref[Any]], skips_quiet: bool = False
    ) -> None:
        """Handle all answers that are ready. If none is ready, wait up to `timeout_s` for an answer or one of `others`.

        With `skips_quiet`, quiet answers do not end the wait, unless only quiet answers are pending. Raise RoleLost if
        a role died or an answer takes too long. Answers in `patient` may take any time. Raise ObjectLost if an argument
        of a call was lost with its process or node.
        """
        every, timeout_s = [*self.pending, *others], max(0.0, timeout_s)
        if skips_quiet and 0 < len(self.quiet) < len(self.pending):
            wait([ref for ref in every if ref not in self.quiet], timeout_s)
            timeout_s = 0.0
        for ref in wait(every, timeout_s):
            if ref in self.pending:
                role, react, _ = self.pending.pop(ref)
                self.quiet.discard(ref)
                self.answered.add(role)
                try:
                    react(ref)
                except ObjectLost:
                    raise
                except ActorDied as error:
                    raise RoleLost(f"{role} died: {error}") from error
        oldest = now() - self.stall_s  # a process may take START_S longer for its first answer
        calls = [(role, at) for ref, (role, _, at) in self.pending.items() if ref not in patient]
        silent = {role for role, at in calls if at < oldest - (0.0 if role in self.answered else START_S)}
        if silent:
            raise RoleLost(f"no answer for {self.stall_s:g} s from: {', '.join(sorted(silent))}")


def blame(roles: Mapping[str, Handle[object]], error: Exception) -> RoleLost:
    """Ping all roles. Return a RoleLost that names a dead role, or else the roles that do not answer within GRACE_S."""
    silent = {handle.ping(): role for role, handle in roles.items()}
    until = now() + GRACE_S
    while silent and (ready := wait(list(silent), max(0.0, until - now()))):
        for ref in ready:
            role = silent.pop(ref)
            try:
                get(ref)
            except ActorDied as died:
                return RoleLost(f"{role} died: {died}")
    return RoleLost("; ".join([str(error), *(f"{role} does not answer" for role in silent.values())]))
