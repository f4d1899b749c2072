"""Saver: collects the states of all roles for a checkpoint, and has manage write the checkpoint."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from drl_cli.config.config import Config
from drl_cli.errors import RoleLost
from drl_cli.run_folder.checkpoint import free_folder, make_draft
from drl_cli.run_folder.checkpoint_writer import Draft
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.edges.pool import worker_of
from drl_cli.runtime.interfaces import ReplayRole, TrainerRole, WorkerRole
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.place.handles import ActorDied, Handle, LocalRef, Ref, get
from drl_cli.types import Array, LoadParams, State
from drl_cli.utils.clock import now
from drl_cli.utils.run_clock import multiple_after

log = logging.getLogger(__name__)


FIRST_S = 45.0
"""Longest time [s] from the start of a process, and until a checkpoint has updates, to the next checkpoint.

A kill then costs at most a minute of work. A checkpoint that manage's death prevented is repeated after this time.
"""


class Saver:
    """Saves one checkpoint at a time below `root` while the other roles continue. A full disk does not stop the run."""

    def __init__(self, config: Config, edges: Edges, calls: Calls, root: Path) -> None:
        self.config, self.edges, self.calls, self.root = config, edges, calls, root
        self.last: Path | None = None
        self.saved: Mapping[str, Any] | None = None
        self.next = 0  # position at the next checkpoint; the first checkpoint is saved before training
        self.due_at = now() + FIRST_S  # time of the next checkpoint, whatever `checkpoint.period` is
        self.busy = False
        self.problem: Exception | None = None  # why the last save failed
        self.warned: set[str] = set()

    def is_due(self, position: int) -> bool:
        """Return whether a periodic checkpoint is due. The last checkpoint of a run is always saved."""
        is_due = self.next <= position or now() >= self.due_at
        return is_due and position < self.config.clock.total and not self.busy

    def go_on(self, position: int) -> None:
        self.next = multiple_after(position, self.config.checkpoint.period)

    def begin(
        self,
        params_header: LoadParams,
        params: Ref[Array],
        counters: Mapping[str, Any],
        evaluated: Ref[Array] | None = None,
        workers: bool = True,
    ) -> None:
        """Save this version, the orchestrator's `counters` and the states of all roles, unless they are saved already.

        `evaluated` are the parameters of a version that a resumed run evaluates again. A role answers calls in order,
        so later calls do not change the saved state.
        """
        assert not self.busy
        is_before_progress = self.saved is None or params_header.opt_steps == 0
        period_s = self.config.checkpoint.period_s or math.inf
        self.due_at = now() + (min(FIRST_S, period_s) if is_before_progress else period_s)
        position = counters["counts"][self.config.clock.unit]
        self.go_on(position)
        if counters["counts"] == self.saved:
            return
        self.busy = True
        try:
            draft = make_draft(free_folder(self.root, position, params_header.version))
        except OSError as error:
            self.on_saved(counters, error)
            return
        states = {"trainer": next(iter(self.edges.trainers.values())).ask(TrainerRole.state)}
        if evaluated is not None:
            states["evaluation"] = LocalRef({"policy": get(evaluated)})
        if workers and restores_workers(self.config):
            members = self.edges.pool.members
            states |= {f"worker {member.index}": worker_of(member).ask(WorkerRole.state) for member in members}
        shards = self.edges.replay.shards if self.config.checkpoint.replay == "on" else []
        _Save(self, draft, (params_header, params, counters), states, shards).begin()

    def on_saved(self, counters: Mapping[str, Any], saved: str | Exception | None) -> None:
        """Handle the end of a save: `saved` is the new folder. If it is an error, or None because manage died, warn."""
        self._end(saved)
        if isinstance(saved, str):
            self.last, self.saved = Path(saved), counters["counts"]
        else:
            self.due_at = min(self.due_at, now() + FIRST_S)
            last = "there is none" if self.last is None else f"the last good one is {self.last.name}"
            self.warn("checkpoint", f"a checkpoint could not be saved: {self.problem}; {last}")

    def save_model(self, params_header: LoadParams, params: Ref[Array]) -> None:
        """Save only the model, after the last checkpoint of the run could not be saved."""
        self.busy = True
        self.edges.manage.save(params_header, params, self._on_model)

    def _on_model(self, saved: str | Exception | None) -> None:
        self._end(saved)
        if isinstance(saved, str):
            self.warn(
                "model", f"{(name := Path(saved).name)} has only the final weights: drl-eval takes checkpoint={name}"
            )

    def _end(self, saved: str | Exception | None) -> None:
        self.busy = False
        self.problem = (saved or RoleLost("manage failed")) if not isinstance(saved, str) else None

    def warn(self, part: str, text: str) -> None:
        """Log a warning for the first problem of `part` in a run, later only an info: a full disk repeats problems."""
        log.log(logging.INFO if part in self.warned else logging.WARNING, text)
        self.warned.add(part)


@dataclass(eq=False)
class _Save:
    """A running save: waits for the states and files of all roles, then has manage finish the checkpoint.

    If a worker died, the checkpoint has no states of workers. If a shard can't write its files, the checkpoint has no
    replay.
    """

    saver: Saver
    draft: Path
    version: tuple[LoadParams, Ref[Array], Mapping[str, Any]]  # parameter version with the orchestrator's counters
    states: dict[str, Ref[State]]
    shards: Sequence[Handle[ReplayRole]]
    sums: dict[str, str] = field(default_factory=dict)
    left: int = 0  # number of roles and shards that have not finished
    failed: bool = False

    def begin(self) -> None:
        self.calls, self.left = self.saver.calls, len(self.states) + len(self.shards)
        for role, ref in self.states.items():
            self.calls.expect(ref, role, partial(self._on_state, role))
        previous = None if self.saver.last is None else str(self.saver.last)
        for i, shard in enumerate(self.shards):
            begun = shard.ask(ReplayRole.begin_save, str(self.draft), previous)
            self.calls.expect(begun, f"replay {i}", partial(self._on_piece, i))

    def _on_state(self, role: str, ref: Ref[State]) -> None:
        try:
            get(ref)
        except ActorDied:
            if role == "trainer":
                raise
            log.info("%s died: the checkpoint has no states of workers", role)  # the pool restarts the worker later
            self.states = {"trainer": self.states["trainer"]}
        self._one_done()

    def _on_piece(self, shard: int, ref: Ref[int | dict[str, str] | None]) -> None:
        """Have the shard write its next piece. After the last piece, keep the sha256 of the shard's files."""
        try:
            answer = get(ref)
        except OSError as error:
            if not self.failed:
                self.saver.warn("replay", f"the replay is left out of a checkpoint: {error}")
            self.failed, answer = True, None
        if self.failed or isinstance(answer, Mapping):
            self.sums.update(answer if isinstance(answer, Mapping) else {})
            self._one_done()
        else:
            part = self.shards[shard].ask(ReplayRole.save_part)
            self.calls.expect(part, f"replay {shard}", partial(self._on_piece, shard))

    def _one_done(self) -> None:
        self.left -= 1
        if self.left:
            return
        if self.failed:
            self.sums = {}
            for i, shard in enumerate(self.shards):
                self.calls.expect(shard.ask(ReplayRole.abort_save), f"replay {i}", get)
            for path in self.draft.glob("state.replay-*"):
                path.unlink()
        params_header, params, counters = self.version
        draft = Draft(str(self.draft), params_header, counters, self.sums, tuple(self.states))
        states = list(self.states.values())
        self.saver.edges.manage.commit(draft, params, states, partial(self.saver.on_saved, counters))


def restores_workers(config: Config) -> bool:
    """Return whether a checkpoint contains the workers' states, so that a resumed run continues bit for bit."""
    return config.mode != "async" and config.worker.num_proxies == 0


def worker_layout(config: Config) -> dict[str, int]:
    """Return the values that must stay the same if workers are to continue from the states in a checkpoint."""
    return {"num": config.num_workers, "envs": config.worker.envs, "row_steps": config.row_steps}
