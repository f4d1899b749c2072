"""Saver: makes checkpoints: asks each role for its part, and has manage put the parts together."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from drl_cli.optim.schedules import multiple_after
from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.files.checkpoint import free_folder, make_draft
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.place.handles import ActorDied, Handle, Ref, get

log = logging.getLogger(__name__)


class Saver:
    """One checkpoint at a time, in a folder under `root`. It is of the moment of `begin`; the roles go on meanwhile.

    A full disk costs the replay's part first, then the checkpoint, never the run or the checkpoint before.
    """

    def __init__(self, config: Config, edges: Edges, calls: Calls, root: Path) -> None:
        self.config, self.edges, self.calls, self.root = config, edges, calls, root
        self.last: Path | None = None
        self.saved: Mapping[str, Any] | None = None
        self.next = 0  # the first checkpoint is of the beginning: there is always one to go on from
        self.busy = False
        self.failing: set[str] = set()

    def is_due(self, env_steps: int) -> bool:
        """Whether it is time for a checkpoint; the last of a run is saved at the end, whatever this says."""
        return self.next <= env_steps < self.config.total_env_steps and not self.busy

    def go_on(self, env_steps: int) -> None:
        """Have the next checkpoint at the first multiple of checkpoint.period after these environment steps."""
        self.next = multiple_after(env_steps, self.config.checkpoint.period)

    def begin(self, params_header: LoadParams, params: Ref, counters: Mapping[str, Any], workers: bool = True) -> None:
        """Save this version, the orchestrator's `counters`, and the state that every role has now.

        Calls to a role are answered in order: later calls do not change what is saved. Nothing happens when the last
        checkpoint has the same counts.
        """
        assert not self.busy
        self.go_on(counters["counts"]["env_steps"])
        if counters["counts"] == self.saved:
            return
        self.busy = True
        try:
            draft = make_draft(free_folder(self.root, counters["counts"]["env_steps"], params_header.version))
        except OSError as error:
            self._on_saved(counters, error)
            return
        states = {"trainer": self.edges.trainers.state()}
        if workers and self.config.restores_workers:
            states |= {f"worker {member.index}": member.handle.call("state") for member in self.edges.pool.members}
        parts = _Parts(
            self.calls,
            draft,
            warn=partial(self._warn, "replay"),
            then=partial(self._commit, draft, params_header, params, counters),
        )
        parts.begin(states, self.edges.replay.shards if self.config.checkpoint.replay == "on" else [], self.last)

    def _commit(
        self,
        draft: Path,
        params_header: LoadParams,
        params: Ref,
        counters: Mapping[str, Any],
        states: Mapping[str, Ref],
        sums: Mapping[str, str],
    ) -> None:
        """All parts are there: have manage make a checkpoint of them."""
        if sums:
            self.failing.discard("replay")
        parts = (str(draft), params_header, params, counters, sums, tuple(states), *states.values())
        self.edges.manage.commit(parts, partial(self._on_saved, counters))

    def _on_saved(self, counters: Mapping[str, Any], saved: str | Exception | None) -> None:
        """Manage answered with the checkpoint's folder or with what went wrong; None: manage died."""
        self.busy = False
        if isinstance(saved, str):
            self.last, self.saved = Path(saved), counters["counts"]
            self.failing.discard("checkpoint")
        else:
            last = "there is none" if self.last is None else f"the last good one is {self.last.name}"
            self._warn("checkpoint", f"a checkpoint could not be saved: {saved or 'manage failed'}; {last}")

    def _warn(self, what: str, text: str) -> None:
        """Warn the first time in a row that something fails: on a full disk each checkpoint of a night does."""
        log.log(logging.INFO if what in self.failing else logging.WARNING, text)
        self.failing.add(what)


class _Parts:
    """Waits for the states of roles, and has every shard of the replay write its part into a draft, a piece per call.

    `then` gets references to the states, without the workers' when one of them died, and the sha256 sums of the shards'
    files: none, after a `warn`ing, when a shard could not write its own.
    """

    def __init__(
        self,
        calls: Calls,
        draft: Path,
        *,
        warn: Callable[[str], None],
        then: Callable[[Mapping[str, Ref], Mapping[str, str]], None],
    ) -> None:
        self.calls, self.draft, self.warn, self.then = calls, draft, warn, then
        self.states: dict[str, Ref] = {}
        self.shards: Sequence[Handle] = []
        self.sums: dict[str, str] = {}
        self.left = 0
        self.failed = False

    def begin(self, states: Mapping[str, Ref], shards: Sequence[Handle], previous: Path | None) -> None:
        """Wait for these states; the shards link what has not changed since the `previous` checkpoint."""
        self.states, self.shards, self.left = dict(states), shards, len(states) + len(shards)
        for role, ref in states.items():
            self.calls.expect(ref, role, partial(self._on_state, role))
        for i, shard in enumerate(shards):
            ref = shard.call("begin_save", str(self.draft), None if previous is None else str(previous))
            self.calls.expect(ref, f"replay {i}", partial(self._on_piece, i))

    def _on_state(self, role: str, ref: Ref) -> None:
        try:
            get(ref)
        except ActorDied:
            if role == "trainer":
                raise
            log.info("%s died: a resumed run's workers begin anew", role)  # its next collect has it replaced
            self.states = {"trainer": self.states["trainer"]}
        self._one_less()

    def _on_piece(self, shard: int, ref: Ref) -> None:
        """A shard answered: with the sums of all its files when it is done, else there is more to write."""
        try:
            answer = get(ref)
        except OSError as error:
            if not self.failed:
                self.warn(f"the replay is left out of a checkpoint: {error}")
            self.failed, answer = True, {}
        if self.failed or isinstance(answer, Mapping):
            self.sums.update(answer if isinstance(answer, Mapping) else {})
            self._one_less()
        else:
            self.calls.expect(self.shards[shard].call("save_part"), f"replay {shard}", partial(self._on_piece, shard))

    def _one_less(self) -> None:
        self.left -= 1
        if self.left:
            return
        if self.failed:
            for i, shard in enumerate(self.shards):
                self.calls.expect(shard.call("abort_save"), f"replay {i}", get)
            for path in self.draft.glob("state.replay-*"):
                path.unlink()
        self.then(self.states, {} if self.failed else self.sums)


def drop_drafts(root: Path) -> None:
    """Remove the drafts of checkpoints that were never finished."""
    for path in root.glob(".step_*"):
        shutil.rmtree(path)
