"""Restore: give every role its part of a checkpoint, so that a run continues where it stopped."""

import logging
from functools import partial

import numpy as np

from drl_cli.config.config import Config
from drl_cli.run_folder.checkpoint import EVALUATION, Checkpoint, read_arrays, read_manifest
from drl_cli.run_folder.evaluations import EVAL_COLUMNS
from drl_cli.runtime.edges.pool import worker_of
from drl_cli.runtime.interfaces import ReplayRole, TrainerRole, WorkerRole
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.rate_limiter import ReadLimiter
from drl_cli.runtime.orchestrator.saver import restores_workers, worker_layout
from drl_cli.runtime.place.handles import Ref, get
from drl_cli.types import LoadParams

log = logging.getLogger(__name__)


def first_incarnation(checkpoint: Checkpoint | None) -> int:
    """Return the first incarnation of the workers, which is above all incarnations before the checkpoint."""
    return int(checkpoint.state["incarnation"]) + 1 if checkpoint else 0


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
        graph.calls.expect(trainer.ask(TrainerRole.load_state, state), role, get)
    if checkpoint.has_replay:
        for i, shard in enumerate(graph.replay.shards):
            rows = shard.ask(ReplayRole.load, str(folder), manifest)
            graph.calls.expect(rows, f"replay {i}", partial(_on_loaded, graph, i))
    else:
        log.warning("%s holds no replay: it is refilled before the next update", folder.name)
    has_same_layout = checkpoint.state["workers"] == worker_layout(config)
    names = {f"state.worker-{member.index}.safetensors": member for member in graph.pool.members}
    if restores_workers(config) and has_same_layout and names.keys() <= manifest["sha256"].keys():
        for name, member in names.items():
            state = read_arrays(folder, name, manifest)
            loaded = worker_of(member).ask(WorkerRole.load_state, state)
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
