"""Calls: what the orchestrator has asked of the roles and not heard of yet, and the one place where it waits."""

from collections.abc import Callable, Container, Sequence

from drl_cli.runtime.errors import RoleLost
from drl_cli.runtime.handles import ActorDied, Ref, wait
from drl_cli.utils.clock import now


class Calls:
    """Maps each reference to the role that owes it and to what is done with it.

    A role that owes an answer for `stall_s` is lost: nobody waits for ever, and nobody has to guess for whom.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.pending: dict[Ref, tuple[str, Callable[[Ref], None], float]] = {}

    def expect(self, ref: Ref, role: str, react: Callable[[Ref], None]) -> None:
        """React to this role's answer when it is there."""
        self.pending[ref] = (role, react, now())

    def react(self, others: Sequence[Ref], timeout_s: float, patient: Container[Ref]) -> None:
        """React to all answers that are there; if there are none, wait for one, or one of `others`, or the time.

        Raises RoleLost when a role died, or stalls, but for those calls that others are `patient` with.
        """
        for ref in wait([*self.pending, *others], max(0.0, timeout_s)):
            if ref in self.pending:
                role, react, _ = self.pending.pop(ref)
                try:
                    react(ref)
                except ActorDied as error:
                    raise RoleLost(f"{role} died: {error}") from error
        self._watch(patient)

    def _watch(self, patient: Container[Ref]) -> None:
        since = now() - self.stall_s
        silent = {role for ref, (role, _, issued) in self.pending.items() if issued < since and ref not in patient}
        if silent:
            raise RoleLost(f"no answer for {self.stall_s:g} s from: {', '.join(sorted(silent))}")
