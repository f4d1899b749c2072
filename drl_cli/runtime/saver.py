"""Saver: the orchestrator's way to a checkpoint: asks each role for its part, has manage put them together."""

import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from drl_cli.runtime.checkpoint import free_folder, make_draft
from drl_cli.runtime.config import Config
from drl_cli.runtime.handles import Ref, get
from drl_cli.runtime.manage_link import ManageLink
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.replay_shards import ReplayShards
from drl_cli.runtime.trainer_group import TrainerGroup
from drl_cli.runtime.worker_pool import WorkerPool

log = logging.getLogger(__name__)

Watch: TypeAlias = Callable[[Ref, str, Callable[[Ref], None]], None]
"""Has a role's answer reacted to when it is there."""


class Saver:
    """One checkpoint at a time. It is of the moment of `begin`, although the roles go on while it is written.

    A full disk costs the replay's part first, then the checkpoint, never the run or the checkpoint before.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        replay: ReplayShards,
        trainers: TrainerGroup,
        pool: WorkerPool,
        manage: ManageLink,
        watch: Watch,
    ) -> None:
        self.config, self.root, self.watch = config, folder / "checkpoints", watch
        self.replay, self.trainers, self.pool, self.manage = replay, trainers, pool, manage
        self.last: Path | None = None
        self.saved: Mapping[str, Any] | None = None
        self.busy = False

    def begin(self, load: LoadParams, params: Ref, counters: Mapping[str, Any], workers: bool = True) -> None:
        """Save this version, what the orchestrator counts, and every role as it is now.

        Calls to a role are answered in order, so the roles may go on at once. Nothing happens when the last checkpoint
        has the same counts.
        """
        assert not self.busy
        if counters["counts"] == self.saved:
            return
        self.busy = True
        try:
            draft = make_draft(free_folder(self.root, counters["counts"]["env_steps"], load.version))
        except OSError as error:
            self._on_saved(counters, error)
            return
        states: dict[str, Ref] = {"trainer": self.trainers.trainers[0].call("state")}
        if workers and self.config.restores_workers:
            states |= {f"worker-{member.index}": member.handle.call("state") for member in self.pool.members}
        for role, ref in states.items():
            self.watch(ref, role.replace("-", " "), get)  # what is wrong there is not manage's to report

        def commit(sums: Mapping[str, str]) -> None:
            parts = (str(draft), load, params, counters, sums, tuple(states), *states.values())
            self.manage.commit(parts, partial(self._on_saved, counters))

        if self.config.checkpoint.replay == "on":
            _ReplayPart(self, draft, commit)
        else:
            commit({})

    def _on_saved(self, counters: Mapping[str, Any], saved: str | OSError | None) -> None:
        """Manage's answer: the folder, or why there is none (None: manage died, and has been reported)."""
        self.busy = False
        if isinstance(saved, str):
            self.last, self.saved = Path(saved), counters["counts"]
        else:
            last = "there is none" if self.last is None else f"the last good one is {self.last.name}"
            log.warning("a checkpoint could not be saved: %s; %s", saved or "manage failed", last)


class _ReplayPart:
    """Every shard writes its part into a draft, a piece per call; `then` gets the sums of the files.

    When one can't, the files of all are removed and `then` gets none.
    """

    def __init__(self, saver: Saver, draft: Path, then: Callable[[Mapping[str, str]], None]) -> None:
        self.shards, self.watch, self.draft, self.then = saver.replay.shards, saver.watch, draft, then
        self.sums: dict[str, str] = {}
        self.left = len(self.shards)
        self.failed = False
        previous = None if saver.last is None else str(saver.last)
        for i, shard in enumerate(self.shards):
            self._ask(i, shard.call("begin_save", str(draft), previous))

    def _ask(self, shard: int, ref: Ref) -> None:
        self.watch(ref, f"replay {shard}", partial(self._on_answer, shard))

    def _on_answer(self, shard: int, ref: Ref) -> None:
        """The sums of all of a shard's files, or something else while there is more to write."""
        try:
            answer = get(ref)
        except OSError as error:
            if not self.failed:
                log.warning("the replay is left out of a checkpoint: %s", error)
            self.failed, answer = True, {}
        if not self.failed and not isinstance(answer, Mapping):
            self._ask(shard, self.shards[shard].call("save_part"))
            return
        self.left -= 1
        self.sums.update(answer if isinstance(answer, Mapping) else {})
        if self.left == 0:
            self._end()

    def _end(self) -> None:
        if self.failed:
            for i, shard in enumerate(self.shards):
                self.watch(shard.call("abort_save"), f"replay {i}", get)
            for path in self.draft.glob("state.replay-*"):
                path.unlink()
        self.then({} if self.failed else self.sums)


def drop_drafts(root: Path) -> None:
    """Remove what checkpoints that were never finished have left."""
    for path in root.glob(".step_*"):
        shutil.rmtree(path)
