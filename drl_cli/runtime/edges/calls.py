"""Calls: which answers the orchestrator waits for, and the one place where it waits."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from drl_cli.errors import RoleLost
from drl_cli.runtime.place.handles import ActorDied, Handle, ObjectLost, Ref, get, wait
from drl_cli.utils.clock import now

GRACE_S = 10.0
"""By then it is known of a process that died that it is dead."""
START_S = 60.0
"""The first answer of a process may take this much longer than others: the process has to start and import first."""


class Calls:
    """Maps the reference to each answer to the role that owes it and to the function that reacts to it.

    `in_flight` counts the references by kind of role. A role is lost that owes an answer for longer than `stall_s`, its
    first answer for longer than `stall_s + START_S`.
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
        """React to all answers that are there; if there are none, wait until there is one.

        The wait also ends when one of the references in `others` is ready, or after `timeout_s`. Raises RoleLost when
        a role died, or owes an answer for too long; calls in `patient` may take as long as they like. Raises ObjectLost
        when an argument of a call is gone with the process or node that had it.
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
    """A role's name without its number."""
    return role.rstrip(" 0123456789")


def blame(roles: Mapping[str, Handle], error: Exception) -> RoleLost:
    """Find out who is to blame for an error in one role that another may have caused.

    Pings all: returns RoleLost naming the role that died, or else those that do not answer within GRACE_S.
    """
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
