"""Restore: give every role its part of a checkpoint, so that a run continues where it stopped."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.errors import CheckpointError
from drl_cli.metrics.truncate import Cut
from drl_cli.optim.schedules import RunClock
from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.pool import worker_of
from drl_cli.runtime.files import left_behind, retention
from drl_cli.runtime.files.checkpoint import COUNTERS, load_model, point, read_arrays, read_json, read_manifest
from drl_cli.runtime.interfaces import ReplayRole, TrainerRole, WorkerRole
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.rate_limiter import ReadLimiter
from drl_cli.runtime.place.ask import ask
from drl_cli.runtime.place.handles import Ref, get
from drl_cli.runtime.roles.recording import EVAL_COLUMNS
from drl_cli.types import Array

log = logging.getLogger(__name__)

EVALUATION = "state.evaluation.safetensors"
"""The parameters of a version whose evaluation a resumed run repeats."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint for `resume`: a parameter version, the orchestrator's `state`, and the files of other roles."""

    folder: Path
    params_header: LoadParams
    params: Array
    manifest: dict[str, Any]
    state: dict[str, Any]

    @property
    def env_steps(self) -> int:
        return int(self.state["counts"]["env_steps"])

    @property
    def opt_steps(self) -> int:
        return int(self.state["counts"]["opt_steps"])

    @property
    def unfinished(self) -> LoadParams | None:
        """The version whose evaluation the resumed run has to repeat, if any."""
        return LoadParams(**self.state["evaluation"]) if EVALUATION in self.manifest["sha256"] else None

    @property
    def has_replay(self) -> bool:
        return any(map(is_replay, self.manifest["sha256"]))

    def without_replay(self) -> "Checkpoint":
        """Return the checkpoint as if it had been saved with checkpoint.replay=off."""
        sums = {name: sha256 for name, sha256 in self.manifest["sha256"].items() if not is_replay(name)}
        return replace(self, manifest=self.manifest | {"sha256": sums})


def is_replay(name: str) -> bool:
    """Return whether a file of a checkpoint belongs to the replay."""
    return name.startswith("state.replay-")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint and read its small files. Raise CheckpointError with the name of a missing or damaged file."""
    params, manifest = load_model(folder)
    if COUNTERS not in manifest["sha256"]:
        raise CheckpointError(f"{folder} holds a model only, nothing to resume from; load_weights={folder} can use it")
    params_header = LoadParams(
        manifest["version"], manifest["opt_steps"], manifest["env_steps"], exploration=manifest["exploration"]
    )
    return Checkpoint(folder.resolve(), params_header, params, manifest, read_json(folder, COUNTERS, manifest))


def first_incarnation(checkpoint: Checkpoint | None) -> int:
    """Return the first incarnation of the workers, which is above all incarnations before the checkpoint."""
    return int(checkpoint.state["incarnation"]) + 1 if checkpoint else 0


def clean_up(run: Path, checkpoint: Checkpoint | None, clock: RunClock) -> list[str]:
    """Cut the records of a run at the checkpoint from which it resumes. Let `last` point to the checkpoint.

    Return a line for each file with damaged records, and for a damaged best model. All checkpoints, and what is cut,
    are kept until the run has saved a new checkpoint: a run that is killed before can resume from each of them.
    Evaluations of later versions than the checkpoint's are cut, too. In mode=async, such a version may be of the same
    position as the checkpoint.
    """
    root = run / "checkpoints"
    base = Path() if checkpoint is None else checkpoint.folder
    cut = Cut(-1, -1, clock.unit)
    if checkpoint is not None:
        unfinished = checkpoint.unfinished
        evaluated = clock.of(unfinished) - 1 if unfinished else clock.of(checkpoint.params_header)
        cut = Cut(clock.of(checkpoint), evaluated, clock.unit)
        if base.name != "last":  # not a link in a copy of a run
            point(root, "last", base)
    retention.drop_drafts(root)
    for path in run.glob(".*.[0-9]*"):  # half-written files of killed processes, see `replace_file`
        if path.is_file() and (run / path.stem[1:]).exists():
            path.unlink()
    lines = retention.repair_best(root)
    names = [path.name for path in retention.checkpoints(root) if (path / COUNTERS).exists()]  # not a model alone
    left = left_behind.read(run)
    if left is not None and not set(names) <= set(left.steps):  # the run was killed right after a new checkpoint
        left_behind.forget(run)
    behind = [path.name for path in retention.newer(root, base)]
    left_behind.keep(run, base.name, names, behind)
    return [*lines, *left_behind.cut_records(run, base.name, behind, cut)]


def _on_loaded(graph: Orchestrator, shard: int, ref: Ref[int]) -> None:
    if rows := get(ref):
        graph.replay.filled.add(shard)
    if graph.config.is_on_policy:  # the loaded rows: 0 if the capacity of the queue has changed
        graph.limiter.load_state({**graph.limiter.state(), "queued": rows})


def restore(checkpoint: Checkpoint, config: Config, graph: Orchestrator) -> None:
    """Load the checkpoint into every role of a new graph.

    In mode=single, and in mode=sync without proxies, workers continue from their saved states if `worker_layout` has
    not changed. In all other cases, workers start with new seeds and new episodes.
    """
    folder, manifest = checkpoint.folder, checkpoint.manifest
    state = read_arrays(folder, "state.trainer.safetensors", manifest)
    for role, trainer in graph.trainers.items():
        graph.calls.expect(ask(trainer, TrainerRole.load_state, state), role, get)
    if checkpoint.has_replay:
        for i, shard in enumerate(graph.replay.shards):
            rows = ask(shard, ReplayRole.load, str(folder), manifest)
            graph.calls.expect(rows, f"replay {i}", partial(_on_loaded, graph, i))
    else:
        log.warning("%s holds no replay: it is refilled before the next update", folder.name)
    has_same_layout = checkpoint.state["workers"] == config.worker_layout
    names = {f"state.worker-{member.index}.safetensors": member for member in graph.pool.members}
    if config.restores_workers and has_same_layout and names.keys() <= manifest["sha256"].keys():
        for name, member in names.items():
            state = read_arrays(folder, name, manifest)
            loaded = ask(worker_of(member), WorkerRole.load_state, state)
            graph.calls.expect(loaded, f"worker {member.index}", get)
    graph.progress.load_state(checkpoint.state["progress"], checkpoint.has_replay)
    if checkpoint.has_replay:
        graph.limiter.load_state(checkpoint.state["limiter"])
        if "reanalysis" in checkpoint.state:
            graph.reanalysis.load_state(checkpoint.state["reanalysis"])
        choices = checkpoint.state["shards"].items()
        graph.replay.load_state({name: np.array(value, np.uint64) for name, value in choices})
    elif isinstance(graph.limiter, ReadLimiter):
        graph.limiter.load_state(checkpoint.state["limiter"])
        graph.limiter.lose()
    best = folder.parent / "best"
    if best.exists():  # a best model saved after this checkpoint stays the best
        found = read_manifest(best)
        params_header = LoadParams(found["version"], found["opt_steps"], found["env_steps"])
        statistics = {name: found[name] for name in EVAL_COLUMNS[4:]}
        graph.progress.best = EvalReport(params_header, found["wall_s"], statistics, found["cut"], is_best=True)
    graph.go_on(checkpoint.params_header, checkpoint.params)
    graph.saver.last, graph.saver.saved = folder, checkpoint.state["counts"]
    if unfinished := checkpoint.unfinished:
        graph.progress.forget_scores(config.clock.of(unfinished))
        graph.reports.evaluate(unfinished, graph.learning.share(read_arrays(folder, EVALUATION, manifest)["policy"]))
