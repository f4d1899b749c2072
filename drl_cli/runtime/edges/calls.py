"""Calls: what the orchestrator has asked of the roles and not heard of yet, and the one place where it waits."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from drl_cli.runtime.errors import RoleLost
from drl_cli.runtime.place.handles import ActorDied, Handle, ObjectLost, Ref, get, wait
from drl_cli.utils.clock import now

GRACE_S = 10.0  # a dead process is known to be dead by then
START_S = 60.0
"""What the first answer of a process may take longer than any other: it has to start and import first."""


class Calls:
    """Maps each reference to the role that owes it and to what is done with it.

    `in_flight` counts them by kind of role. A role that owes an answer for `stall_s`, or its first for `START_S` more,
    is lost: nobody waits for ever, and nobody has to guess for whom.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.pending: dict[Ref, tuple[str, Callable[[Ref], None], float]] = {}
        self.in_flight: Counter[str] = Counter()
        self.answered: set[str] = set()

    def expect(self, ref: Ref, role: str, react: Callable[[Ref], None]) -> None:
        """React to this role's answer when it is there."""
        self.pending[ref] = (role, react, now())
        self.in_flight[_kind(role)] += 1

    def react(self, others: Sequence[Ref], timeout_s: float, patient: Container[Ref]) -> None:
        """React to all answers that are there; if there are none, wait for one, or one of `others`, or the time.

        Raises RoleLost when a role died, or stalls, but for those calls that others are `patient` with; ObjectLost when
        what a role was called with is gone, whoever had it.
        """
        for ref in wait([*self.pending, *others], max(0.0, timeout_s)):
            if ref in self.pending:
                role, react, _ = self.pending.pop(ref)
                self.in_flight[_kind(role)] -= 1
                self.answered.add(role)
                try:
                    react(ref)
                except ObjectLost:
                    raise
                except ActorDied as error:
                    raise RoleLost(f"{role} died: {error}") from error
        self._watch(patient)

    def _watch(self, patient: Container[Ref]) -> None:
        calls, time = self.pending.items(), now()
        silent = {role for ref, (role, _, at) in calls if at + self._patience(role) < time and ref not in patient}
        if silent:
            raise RoleLost(f"no answer for {self.stall_s:g} s from: {', '.join(sorted(silent))}")

    def _patience(self, role: str) -> float:
        return self.stall_s + (0.0 if role in self.answered else START_S)


def _kind(role: str) -> str:
    """Without its number."""
    return role.rstrip(" 0123456789")


def blame(roles: Mapping[str, Handle], error: Exception) -> RoleLost:
    """What ended the run when one role misses another, or what it had: the one that died, or those that are silent."""
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
