"""`resume=RUN`: find the run and its checkpoint, check what has changed since, and prepare the folder."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from drl_cli.config.config import DESCRIBING, Config
from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.checkpoint import Checkpoint, damaged_files, is_replay, open_checkpoint
from drl_cli.run_folder.find import (
    checkpoint_names,
    find_saved_run,
    read_config,
    warn_of_versions,
)
from drl_cli.run_folder.pruning import candidates, linked, older
from drl_cli.run_folder.saved_run import Run, read_json
from drl_cli.run_folder.truncation import cut_back
from drl_cli.settings.build import as_typed, is_within, to_yaml_keys
from drl_cli.settings.trust import trusts
from drl_cli.types import flatten
from drl_cli.utils.files import lock
from drl_cli.utils.outside import source_file, source_hash
from drl_cli.utils.shown import relative_path

log = logging.getLogger(__name__)

LOCK_WAIT_S = 0.5  # because a command that checks whether a run is alive holds the lock for a moment
ORPHAN_WAIT_S = 30.0  # until the manage process of a killed run has ended
_FREE = """
mode device total_env_steps total_updates data stop output_dir worker.num worker.max_num worker.proxies
worker.envs worker.block_rows worker.unroll worker.fetch worker.step_timeout_s worker.max_restarts
replay.shards manage checkpoint logger ray sweep hpo debug console trainer.num trainer.updates_per_call
trainer.threads trainer.products trainer.compile trainer.on_nonfinite orchestrator.band
orchestrator.gather_window_s orchestrator.stall_s orchestrator.sample_load_ratio reanalyzer.num
reanalyzer.windows reanalyzer.max_restarts
"""
FREE = (*DESCRIBING, *_FREE.split())
"""Keys and groups that may change freely: they set where and how fast a run works, when it ends, and its output."""

_IMPOSSIBLE = """
seed load_weights reward network optimizer.name optimizer.kwargs algo.name env.name env.id env.kwargs
env.frame_stack env.frame_storage env.normalize_obs env.normalize_reward env.wrappers algo.initial_alpha
algo.initial_beta algo.temperature_start algo.alpha_start algo.kl_coef replay.rows replay.sampler
replay.compress replay.seq_len replay.burn_in replay.overlap
"""
IMPOSSIBLE = tuple(_IMPOSSIBLE.split())
"""Keys and groups that can't change, because saved state depends on them. Keys in neither list need confirm=true."""

COMMAND = ("resume", "from_config", "confirm", "trust", "dry_run", "explain")
"""Keys that concern only one command. They are not compared."""

Verdict = Literal["free", "careful", "impossible"]


class Change(NamedTuple):
    """A change since the run was saved. `key` is a config key or a user's source file; `text` describes the change."""

    key: str
    text: str


def verdict(key: str) -> Verdict:
    """Return whether a run can continue with another value of the key: freely, with confirm=true, or not at all."""
    return "impossible" if is_within(key, IMPOSSIBLE) else "free" if is_within(key, FREE) else "careful"


def changed_keys(old: Config, config: Config) -> list[Change]:
    """Return the keys with different values, except the keys in COMMAND."""
    before, after = flatten(to_yaml_keys(old)), flatten(to_yaml_keys(config))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key) and key not in COMMAND]
    return [Change(key, f"{key}={as_typed(after.get(key))} (was {as_typed(before.get(key))})") for key in keys]


def changed_code(folder: Path, config: Config) -> list[Change]:
    """Return the user's source files whose sha256 differs from the one in run.json. Ignore missing files."""
    recorded = read_json(folder / "run.json").get("code", {})
    files = {module: file for module in config.outside() if (file := source_file(module)) is not None}
    hashes = [(str(file), recorded.get(module), source_hash(file)) for module, file in files.items()]
    return [
        Change(file, f"{file} has changed (sha256 {new[:8]}, was {old[:8]})")
        for file, old, new in hashes
        if old not in (None, new)
    ]


def check_changes(changes: Iterable[Change], is_confirmed: bool) -> None:
    """Raise UsageError (exit 8) if a change is impossible, or affects learning and confirm=true is missing."""
    problems = [
        f"resume: {change.text}: what was saved depends on it; from_config=RUN starts a new run"
        for change in changes
        if verdict(change.key) == "impossible"
    ]
    careful = [change.text for change in changes if verdict(change.key) == "careful"]
    if careful and not is_confirmed:
        problems.append(f"resume: {', '.join(careful)}: changes what is learned from here on; say confirm=true")
    if problems:
        raise UsageError(problems, CHECKPOINT)


def find_checkpoint(
    run: str, output_dir: str, find: Callable[[str, str], Path] = find_saved_run
) -> tuple[Path, Path | None]:
    """Return a run's folder, and the checkpoint if `run` is the folder of a checkpoint."""
    path = Path(run)
    if path.resolve().parent.name == "checkpoints" and (path / "manifest.json").is_file():
        return path.resolve().parents[1], path.resolve()
    if path.parent.name == "checkpoints" and (path.parents[1] / "run.json").is_file():
        line = f"no checkpoint '{path.name}' in {path.parent}; {checkpoint_names(path.parent)}"
        raise UsageError(line, CHECKPOINT)
    return find(run, output_dir), None


@dataclass(frozen=True)
class Resumed:
    """A run to resume. `checkpoint` is None if the run has none."""

    folder: Path
    checkpoint: Checkpoint | None
    config: Config
    changes: list[Change]

    @property
    def position(self) -> int:
        return self.config.clock.of(self.checkpoint) if self.checkpoint else 0

    @property
    def record(self) -> dict[str, Any]:
        return read_json(self.folder / "run.json")

    def cut_records(self, command: list[str]) -> dict[str, Any]:
        """Cut the records of the run at the checkpoint. Return the new content of run.json."""
        from drl_cli.run_folder.run_json import code_hashes, description, resumed_record

        for line in cut_back(self.folder, self.checkpoint, self.config.clock):
            log.warning("%s", line)
        for name in ("summary.json", "error.txt"):  # they were written when the run ended, and the run now continues
            (self.folder / name).unlink(missing_ok=True)
        record = self.record | {"code": code_hashes(self.config), **description(self.config)}
        return resumed_record(
            record, command, self.config.clock.unit, self.position, [change.text for change in self.changes]
        )


def resume(config: Config, typed: Sequence[str]) -> Resumed:
    """Return the run that `config.resume` names. Raise UsageError if the run can't continue with this config."""
    assert config.resume is not None
    folder, named = find_checkpoint(config.resume, config.output_dir)
    warn_of_versions(folder)
    old = read_config(folder, trusts(typed), typed)
    changes = [*changed_keys(old, config), *changed_code(folder, config)]
    check_changes(changes, config.confirm)
    if config.is_offline != old.is_offline:
        line = (
            f"resume: mode={config.mode}: the run is of mode={old.mode}, which counts its position in {old.clock.text}"
        )
        raise UsageError(f"{line}; load_weights={config.resume} starts a new run with its weights", CHECKPOINT)
    summary = read_json(folder / "summary.json")
    clock = config.clock
    if summary.get("status") == "done" and (steps := summary[clock.unit]) >= clock.total:
        line = f"resume: {folder.name} is done at {steps:,} {clock.text}; {clock.key}={2 * steps} would go on"
        raise UsageError(line)
    with claim_run(folder):
        checkpoint = choose(folder, named, needs_replay=config.checkpoint.replay == "on")
    steps = clock.of(checkpoint) if checkpoint is not None else 0
    if clock.total < min(steps, old.clock.total):
        line = f"resume: {folder.name} already has {steps:,} {clock.text}, more than {clock.key}={clock.total}"
        raise UsageError(f"{line}; say for example {clock.key}={2 * steps}")
    worker = config.worker
    if config.mode != old.mode:  # the new mode needs other numbers, unless the user typed them
        if not any(arg.startswith("worker.num=") for arg in typed):
            worker = dataclasses.replace(worker, num=None)
        if not any(arg.startswith("worker.proxies=") for arg in typed):
            worker = dataclasses.replace(worker, proxies="auto")
    if checkpoint is not None and config.load_weights is not None:  # the checkpoint already contains these weights
        worker = dataclasses.replace(worker, random_steps=config.random_steps)
        config = dataclasses.replace(config, load_weights=None)
    return Resumed(folder, checkpoint, dataclasses.replace(config, worker=worker), changes)


def choose(run: Path, named: Path | None, needs_replay: bool) -> Checkpoint | None:
    """Return the checkpoint `named`, or the newest complete checkpoint of a run, or None if the run has saved nothing.

    Print a warning if it is not the one to which `last` points. Raise UsageError (exit 8) if no checkpoint is complete,
    or if `needs_replay` and the replay of the newest one is damaged: then the user chooses between losing the replay
    and losing the steps after an older checkpoint.
    """
    root = run / "checkpoints"
    problems = [] if named or linked(root, "last") else [f"{root / 'last'} is not a link to a checkpoint"]
    for path in [named] if named else candidates(root):
        try:
            checkpoint, damaged = _examine(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if damaged and needs_replay:
            other = _first_whole(reversed(older(root, path)))
            way = f"; to go on from the older {other.name}: resume={relative_path(other)}" if other else ""
            off = "to go on without its replay, which is then filled again: checkpoint.replay=off"
            raise UsageError(f"resume: {path / damaged[0]} is missing or damaged; {off}{way}", CHECKPOINT)
        if damaged:
            problems.append(f"{path / damaged[0]} is missing or damaged, and the replay is filled again")
        if problems:
            log.warning("%s; going on from %s", "; ".join(problems), path.name)
        return checkpoint.without_replay() if damaged else checkpoint
    if named is not None:
        other = _first_whole(each for each in candidates(root) if each.name != named.name)
        hint = f"; to go on from another one: resume={relative_path(other)}" if other else ""
        raise UsageError(f"resume: {problems[0]}{hint}", CHECKPOINT)
    if _has_results(run):
        hint = "no checkpoint is complete, and starting again would replace what the run has recorded"
        raise UsageError([f"resume: {'; '.join(problems)}; {hint}; from_config=RUN starts a new run"], CHECKPOINT)
    return None


def _examine(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Open a checkpoint and read all its files. Return it and the names of the damaged files of its replay.

    Raise CheckpointError if another file is missing or damaged.
    """
    checkpoint = open_checkpoint(folder)
    damaged = damaged_files(folder, checkpoint.manifest)
    if others := [name for name in damaged if not is_replay(name)]:
        raise CheckpointError(f"{folder / others[0]} is missing or damaged")
    return checkpoint, damaged


def _first_whole(folders: Iterable[Path]) -> Path | None:
    for folder in folders:
        try:
            _, damaged = _examine(folder)
        except CheckpointError:
            continue
        if not damaged:
            return folder
    return None


def _has_results(run: Path) -> bool:
    """Return whether a run has saved a checkpoint or a model, damaged or not, or recorded a step."""
    found = Run(run)
    has_steps = bool(found.last_report.get(found.unit)) or bool((found.curve.positions > 0).any())
    return has_steps or any((run / "checkpoints").glob("step_*"))


@contextmanager
def claim_run(folder: Path) -> Iterator[None]:
    """Lock a run's folder in this context. Raise UsageError if another process trains there.

    Wait until the manage process of a killed run has ended, because that process may still write to the folder.
    """
    from drl_cli.run_folder import MANAGE_LOCK

    try:
        claim = lock(folder / RUN_LOCK, timeout_s=LOCK_WAIT_S)
    except BlockingIOError as error:
        pid = read_json(folder / "run.json").get("pid")
        raise UsageError(f"resume: {folder.name} is being trained right now (process {pid})") from error
    with claim:
        try:
            lock(folder / MANAGE_LOCK, timeout_s=ORPHAN_WAIT_S).close()
        except BlockingIOError as error:
            log = folder / "workers" / "manage.log"
            raise UsageError(
                f"resume: a process of the killed run still writes to it: kill it ({log} has it)"
            ) from error
        yield
