"""`resume=RUN` and `from_config=RUN`: find the run, check that the run can continue, and prepare the folder."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.runs.changes import Change, changed_code, changed_keys, check_changes
from drl_cli.runs.end_text import relative_path
from drl_cli.runs.find import check_format, checkpoint_names, find_run, find_saved_run, read_config, warn_of_versions
from drl_cli.runs.run import RUN_LOCK, Run, read_json
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import Checkpoint, damaged_files, is_replay, open_checkpoint
from drl_cli.runtime.files.retention import candidates, cut_back, linked, older
from drl_cli.settings.command_line import OVERRIDE, CommandLine, path_word
from drl_cli.settings.conf import defaults
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.trust import trusts
from drl_cli.utils.files import lock
from drl_cli.utils.hydra_grammar import unquoted

log = logging.getLogger(__name__)

LOCK_WAIT_S = 0.5  # because a command that checks whether a run is alive holds the lock for a moment
ORPHAN_WAIT_S = 30.0  # until the manage process of a killed run has ended


def named_run(command: CommandLine) -> Path | None:
    """Return the run folder that `resume=` or `from_config=` names, or None without these keys. Raise UsageError."""
    values = {match["key"]: match["value"] for arg in command.overrides if (match := OVERRIDE.fullmatch(arg))}
    if empty := [key for key in ("resume", "from_config", "load_weights") if values.get(key) == ""]:
        raise UsageError(
            [f"{key}: say which run: {key}=latest, a path, the start of a run id, or a run's name" for key in empty]
        )
    keys = ("from_config",) if command.is_sweep else ("resume", "from_config")  # in a sweep, resume= names a sweep
    named = {key: value for key in keys if (value := values.get(key)) not in (None, "", "null")}
    if not named:
        return None
    if len(named) > 1:
        raise UsageError("resume goes on with a run, from_config starts another: say one of them")
    ((key, value),) = named.items()
    if command.config_file is not None:
        raise UsageError(f"{key} brings the run's config: leave --config-path and --config-name out")
    run, output_dir = unquoted(value), unquoted(values.get("output_dir") or "outputs")
    # is_quiet, because `resume` finds the run again, and then prints the warning about newer runs
    find = partial(find_saved_run, is_quiet=True) if key == "resume" else find_run
    folder, checkpoint = find_checkpoint(run, output_dir, find)
    free = {"mode"} if key == "resume" else {"mode", "hpo"}
    if chosen := sorted(values.keys() & defaults().keys() - free):
        raise UsageError([group_line(key, group, values[group]) for group in chosen])
    if key == "resume":
        check_format(checkpoint or folder / "checkpoints" / "last")
    # This rejects unknown keys before Hydra reads the file.
    read_config(folder, trusts(command.overrides), command.overrides)
    return folder


def group_line(key: str, group: str, option: str) -> str:
    """Return the error line for `GROUP=OPTION` beside `resume=` or `from_config=`."""
    choice = f"{key}: {group}={option} can't be chosen here"
    if group in ("env", "algo"):
        why = "the saved weights and replay belong" if key == "resume" else "the run's values belong"
        other = f"begin a new run: drl-train {group}={option} ..."
        return f"{choice}: {why} to the run's own {group}; leave it out, or {other}"
    return f"{choice}: it would replace all {group}.* of the run; leave it out, or set single keys, {group}.KEY=VALUE"


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


def with_config_of(folder: Path | None, command: CommandLine) -> CommandLine:
    """Return the command line with the run's config.yaml as the main config. If `folder` is None, change nothing.

    A new run does not inherit the name of the run. A sweep passes `from_config=` to its jobs, with the path of the run,
    because `latest` would name another run when a job starts.
    """
    if folder is None:
        return command
    file, words, typed = folder / "config.yaml", command.overrides, typed_values(command.overrides)
    if command.is_sweep:
        pinned = path_word("from_config", folder)
        words = [pinned if word.lstrip("+").startswith("from_config=") else word for word in words]
        return dataclasses.replace(command, overrides=words, config_file=file)
    if "from_config" in typed and "name" not in typed:
        words = [*words, "name=null"]
    flags = [*command.flags, "--config-path", str(folder), "--config-name", "config"]
    return dataclasses.replace(command, flags=flags, overrides=words, config_file=file)


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
        """The content of run.json."""
        return read_json(self.folder / "run.json")

    def cut_records(self, command: list[str]) -> dict[str, Any]:
        """Cut the records of the run at the checkpoint. Return the new content of run.json."""
        from drl_cli.runtime.run_folder import code_hashes, description, resumed_record

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
    """Return the first of these checkpoints without a damaged file, or None."""
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
    from drl_cli.runtime.roles.manage import MANAGE_LOCK

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
