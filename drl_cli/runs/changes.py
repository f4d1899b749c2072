"""Find what has changed since a run was saved, and check that the run can be resumed with the changes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.runs.run import read_json
from drl_cli.runtime.config import DESCRIBING, Config
from drl_cli.settings.build import as_typed, is_within, to_yaml_keys
from drl_cli.types import flatten
from drl_cli.utils.outside import source_file, source_hash

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
