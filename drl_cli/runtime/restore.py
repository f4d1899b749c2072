"""Restore: hands every role its part of a checkpoint, so that a run goes on where it was."""

import logging
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.errors import CheckpointError
from drl_cli.metrics.cut_back import cut_back
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import COUNTERS, load_model, point, read_arrays, read_json, read_manifest
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.saver import drop_drafts
from drl_cli.runtime.place.handles import Ref, get
from drl_cli.runtime.roles.recording import EVAL_COLUMNS
from drl_cli.types import Array

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: a version, its parameters, the orchestrator's `state`, and the other roles' files."""

    folder: Path
    params_header: LoadParams
    params: Array
    manifest: dict[str, Any]
    state: dict[str, Any]

    @property
    def env_steps(self) -> int:
        """Environment steps that had been taken."""
        return int(self.state["counts"]["env_steps"])

    @property
    def has_replay(self) -> bool:
        """Whether the replay table was saved too."""
        return any(name.startswith("state.replay-") for name in self.manifest["sha256"])


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read what is small; raises CheckpointError naming the file that is missing or damaged."""
    params, manifest = load_model(folder)
    if COUNTERS not in manifest["sha256"]:
        raise CheckpointError(f"{folder} holds a model only, nothing to resume from; load_weights={folder} can use it")
    params_header = LoadParams(
        manifest["version"], manifest["opt_steps"], manifest["env_steps"], exploration=manifest["exploration"]
    )
    return Checkpoint(folder.resolve(), params_header, params, manifest, read_json(folder, COUNTERS, manifest))


def first_incarnation(checkpoint: Checkpoint | None) -> int:
    """The incarnation that workers begin with: above all that the run's workers had before the checkpoint."""
    return int(checkpoint.state["incarnation"]) + 1 if checkpoint else 0


def best_report(folder: Path) -> EvalReport:
    """The evaluation of the best model so far, from its manifest."""
    manifest = read_manifest(folder)
    params_header = LoadParams(manifest["version"], manifest["opt_steps"], manifest["env_steps"])
    statistics = {name: manifest[name] for name in EVAL_COLUMNS[4:]}
    return EvalReport(params_header, manifest["wall_s"], statistics, manifest["cut"], is_best=True)


def clean_up(run: Path, checkpoint: Checkpoint | None) -> None:
    """Remove what a run wrote after this checkpoint: later records, and checkpoints that were not finished.

    Without a checkpoint the run starts over: all records and checkpoints are removed.
    """
    cut_back(run, checkpoint.env_steps if checkpoint else -1)
    drop_drafts(run / "checkpoints")
    if checkpoint is not None:
        point(run / "checkpoints", "last", checkpoint.folder)  # an older one may have been named
    else:
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").mkdir()


def _on_loaded(graph: Orchestrator, shard: int, ref: Ref) -> None:
    if rows := get(ref):
        graph.replay.filled.add(shard)
    if graph.config.is_on_policy:  # a queue of another capacity begins empty
        graph.limiter.load_state({"queued": rows})


def restore(checkpoint: Checkpoint, config: Config, graph: Orchestrator) -> None:
    """Have every role of a new graph go on from the checkpoint.

    Workers take over their states in mode=single, and in mode=sync without proxies, if their number and environments
    are as they were. Otherwise they begin anew, and their environments with seeds that were not used before.
    """
    folder, manifest = checkpoint.folder, checkpoint.manifest
    state = read_arrays(folder, "state.trainer.safetensors", manifest)
    for role, ref in zip(graph.trainers.roles, graph.trainers.load_state(state), strict=True):
        graph.calls.expect(ref, role, get)
    if checkpoint.has_replay:
        for i, shard in enumerate(graph.replay.shards):
            ref = shard.call("load", str(folder), manifest)
            graph.calls.expect(ref, f"replay {i}", partial(_on_loaded, graph, i))
    else:
        log.warning("%s holds no replay: it is filled anew before the next update", folder.name)
    is_same = checkpoint.state["workers"] == config.worker_layout
    names = {f"state.worker-{member.index}.safetensors": member for member in graph.pool.members}
    if config.restores_workers and is_same and names.keys() <= manifest["sha256"].keys():
        for name, member in names.items():
            ref = member.handle.call("load_state", read_arrays(folder, name, manifest))
            graph.calls.expect(ref, f"worker {member.index}", get)
    graph.progress.load_state(checkpoint.state["progress"], checkpoint.has_replay)
    if checkpoint.has_replay:
        graph.limiter.load_state(checkpoint.state["limiter"])
        choices = checkpoint.state["shards"].items()
        graph.replay.load_state({name: np.array(value, np.uint64) for name, value in choices})
    best = folder.parent / "best"
    if best.exists():  # it may be newer than the checkpoint
        graph.progress.best = best_report(best)
    graph.go_on(checkpoint.params_header, checkpoint.params)
    graph.saver.last, graph.saver.saved = folder, checkpoint.state["counts"]
