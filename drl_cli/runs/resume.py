"""`resume=RUN` and `from_config=RUN`: which run that is, and which keys may differ from it."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.runs.find import check_format, find_run, read_config, read_json
from drl_cli.runs.run import RUN_LOCK, flat
from drl_cli.runtime.config import Config
from drl_cli.settings.command_line import OVERRIDE, CommandLine
from drl_cli.settings.conf import groups
from drl_cli.settings.hydra_grammar import unquoted
from drl_cli.settings.settings import to_yaml_keys
from drl_cli.utils.locks import lock
from drl_cli.utils.outside import source_file, source_hash

if TYPE_CHECKING:  # importing it takes long
    from drl_cli.runtime.restore import Checkpoint

FREE = (
    *("mode", "device", "total_env_steps", "stop", "output_dir"),
    *("worker.num", "worker.proxies", "worker.envs", "worker.block_rows", "worker.fetch", "worker.step_timeout_s"),
    *("worker.max_restarts", "replay.shards", "manage", "checkpoint", "logger", "ray", "sweep", "hpo", "debug"),
    "console",
    *("trainer.num", "trainer.updates_per_call", "trainer.threads", "trainer.products", "trainer.compile"),
    *("trainer.on_nonfinite", "orchestrator.band", "orchestrator.gather_window_s", "orchestrator.stall_s"),
    "orchestrator.sample_load_ratio",
)
"""Keys (or groups) that may change at will: where and how fast things run, when they stop, what is written."""

IMPOSSIBLE = (
    *("seed", "load_weights", "network", "optimizer.name", "optimizer.kwargs", "algo.name", "env.name", "env.id"),
    *("env.kwargs", "env.frame_stack", "env.normalize_obs", "env.normalize_reward", "env.wrappers"),
    *("replay.sampler", "replay.compress", "replay.seq_len", "replay.burn_in", "replay.overlap"),
)
"""Keys that what was saved depends on. All others change what is learned from here on, and need confirm=true."""

COMMAND = ("resume", "from_config", "confirm", "dry_run", "explain")
"""Keys that say what to do with a run, and are not of it."""

LOOKED_S = 0.5  # more than others take to see whether a run goes on
ORPHAN_S = 30.0  # that a process lives on whose main process was killed

Verdict = Literal["free", "careful", "impossible"]


@dataclass(frozen=True)
class Change:
    """A key whose value is not that of the run."""

    key: str
    old: Any
    new: Any

    @property
    def verdict(self) -> Verdict:
        """Whether the run can go on with it."""
        return verdict(self.key)

    def __str__(self) -> str:
        return f"{self.key}={_shown(self.new)} (was {_shown(self.old)})"


@dataclass(frozen=True)
class CodeChange(Change):
    """A source file, `key`, from outside this package that is not as it was: its sha256 is another."""

    def __str__(self) -> str:
        return f"{self.key} has changed (sha256 {self.new[:8]}, was {self.old[:8]})"


def verdict(key: str) -> Verdict:
    """Whether a run can go on with another value of this key."""
    names = [key[:i] for i, letter in enumerate(key) if letter == "."] + [key]
    if any(name in IMPOSSIBLE for name in names):
        return "impossible"
    return "free" if any(name in FREE for name in names) else "careful"


def named_run(command: CommandLine) -> Path | None:
    """The run or checkpoint folder that `resume=` or `from_config=` names; raises UsageError when there is none."""
    values = {match["key"]: match["value"] for arg in command.overrides if (match := OVERRIDE.fullmatch(arg))}
    named = {key: value for key in ("resume", "from_config") if (value := values.get(key)) not in (None, "", "null")}
    if not named:
        return None
    if len(named) > 1:
        raise UsageError("resume goes on with a run, from_config starts another: say one of them")
    ((key, value),) = named.items()
    if command.config_file is not None:
        raise UsageError(f"{key} brings the run's config: leave --config-path and --config-name out")
    if key == "resume" and command.is_sweep:  # a sweep goes on
        return None
    for name in values.keys() & set(groups()) - {"mode"}:
        raise UsageError(f"{key}: {name}={values[name]} chooses another group of options; here single keys can be set")
    folder, checkpoint = find_checkpoint(unquoted(value), unquoted(values.get("output_dir") or "outputs"))
    if key == "resume":
        check_format(checkpoint)
    read_config(folder)  # nothing but our own options is in it
    return folder


def find_checkpoint(run: str, output_dir: str) -> tuple[Path, Path]:
    """The run's folder, and the checkpoint's: the last one, or the one that was named by its own folder."""
    path = Path(run)
    if path.resolve().parent.name == "checkpoints" and (path / "manifest.json").is_file():
        return path.resolve().parents[1], path.resolve()
    if path.parent.name == "checkpoints" and (path.parents[1] / "run.json").is_file():
        there = sorted(other.parent.name for other in path.parent.glob("*/manifest.json"))
        names = f"there is: {', '.join(there)}" if there else "there is none"
        raise UsageError(f"no checkpoint '{path.name}' in {path.parent}; {names}", CHECKPOINT)
    folder = find_run(run, output_dir)
    return folder, folder / "checkpoints" / "last"


def with_config_of(folder: Path, command: CommandLine) -> CommandLine:
    """The command line by which Hydra begins with that run's config."""
    flags = [*command.flags, "--config-path", str(folder), "--config-name", "config"]
    return dataclasses.replace(command, flags=flags, config_file=folder / "config.yaml")


@dataclass(frozen=True)
class Resumed:
    """A run that goes on: its folder, where from (None: from its beginning), with which config."""

    folder: Path
    checkpoint: "Checkpoint | None"
    config: Config
    changes: list[Change]

    @property
    def env_steps(self) -> int:
        """Environment steps that need not be taken again."""
        return self.checkpoint.env_steps if self.checkpoint else 0

    def begin(self, command: list[str]) -> dict[str, Any]:
        """Take back what was recorded after the checkpoint; returns the content of run.json."""
        from drl_cli.runtime.restore import clean_up
        from drl_cli.runtime.run_folder import code_hashes, resumed_record

        clean_up(self.folder, self.checkpoint)
        for name in ("summary.json", "error.txt"):  # of the end that was none
            (self.folder / name).unlink(missing_ok=True)
        changes = [str(change) for change in self.changes]
        record = read_json(self.folder / "run.json") | {"code": code_hashes(self.config)}
        return resumed_record(record, command, self.env_steps, changes)


def resume(config: Config, typed: Sequence[str]) -> Resumed:
    """What `config.resume` names; raises UsageError where the run can't go on so.

    Where the mode changes, the number of workers is chosen anew, unless it was typed.
    """
    from drl_cli.runtime.restore import open_checkpoint

    assert config.resume is not None
    folder, path = find_checkpoint(config.resume, config.output_dir)
    old = read_config(folder)
    changes = judge([*changed_keys(old, config), *changed_code(folder, config)], config.confirm)
    check_unfinished(folder, config)
    with claimed(folder):
        try:
            checkpoint = open_checkpoint(path) if path.exists() else None
        except CheckpointError as error:
            raise UsageError(f"resume: {error}{_others(path)}", CHECKPOINT) from error
    worker = config.worker
    if config.mode != old.mode:
        if not any(arg.startswith("worker.num=") for arg in typed):
            worker = dataclasses.replace(worker, num=None)
        if not any(arg.startswith("worker.proxies=") for arg in typed):
            worker = dataclasses.replace(worker, proxies="auto")
    if checkpoint is not None and config.load_weights is not None:  # they are in the checkpoint, their file may be gone
        worker = dataclasses.replace(worker, random_steps=config.random_steps)
        config = dataclasses.replace(config, load_weights=None)
    return Resumed(folder, checkpoint, dataclasses.replace(config, worker=worker), changes)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have a run's folder for this process alone; raises UsageError while another trains in it.

    Where the run was killed, its manage process may live a little longer, and write: its end is waited for.
    """
    from drl_cli.runtime.roles.manage import MANAGE_LOCK

    try:
        claim = lock(folder / RUN_LOCK, timeout_s=LOOKED_S)
    except BlockingIOError as error:
        pid = read_json(folder / "run.json").get("pid")
        raise UsageError(f"resume: {folder.name} is being trained right now (process {pid})") from error
    with claim:
        try:
            lock(folder / MANAGE_LOCK, timeout_s=ORPHAN_S).close()
        except BlockingIOError as error:
            log = folder / "workers" / "manage.log"
            raise UsageError(
                f"resume: a process of the killed run still writes to it: kill it ({log} has it)"
            ) from error
        yield


def changed_keys(old: Config, config: Config) -> list[Change]:
    """Keys whose values differ, but for those of the command itself."""
    before, after = flat(to_yaml_keys(old)), flat(to_yaml_keys(config))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key) and key not in COMMAND]
    return [Change(key, before.get(key), after.get(key)) for key in keys]


def changed_code(folder: Path, config: Config) -> list[Change]:
    """Modules from outside this package whose source is not that of which the run's run.json has the sha256.

    A module that is not there any more, or was not named then, is no change of its source.
    """
    recorded = read_json(folder / "run.json").get("code", {})
    files = {module: file for module in config.learning_modules if (file := source_file(module)) is not None}
    hashes = [(str(file), recorded.get(module), source_hash(file)) for module, file in files.items()]
    return [CodeChange(file, old, new) for file, old, new in hashes if old not in (None, new)]


def judge(changes: list[Change], is_confirmed: bool) -> list[Change]:
    """The changes; raises UsageError (exit 8) where a run can't go on with them, or was not told to."""
    problems = [
        f"resume: {change}: what was saved depends on it; from_config=RUN starts a new run"
        for change in changes
        if change.verdict == "impossible"
    ]
    if not is_confirmed:
        careful = [str(change) for change in changes if change.verdict == "careful"]
        if careful:
            problems.append(f"resume: {', '.join(careful)}: changes what is learned from here on; say confirm=true")
    if problems:
        raise UsageError(problems, CHECKPOINT)
    return changes


def check_unfinished(folder: Path, config: Config) -> None:
    """Raise UsageError when the run is done and this command would add nothing to it."""
    summary = read_json(folder / "summary.json")
    if summary.get("status") == "done" and summary["env_steps"] >= config.total_env_steps:
        raise UsageError(
            f"resume: {folder.name} is done at {summary['env_steps']} env steps; "
            f"total_env_steps={2 * summary['env_steps']} would go on"
        )


def _others(path: Path) -> str:
    """How to go on from another checkpoint of the run, where there is one."""
    damaged = path.resolve().name
    others = sorted(
        other.parent for other in path.parent.glob("step_*/state.orchestrator.json") if other.parent.name != damaged
    )
    return f"; to go on from an older one: resume={others[-1]}" if others else ""


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
