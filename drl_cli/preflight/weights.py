"""`load_weights=PATH`: which checkpoint that is, and whether this run's policy can take it; before anything starts."""

import dataclasses
import sys
from pathlib import Path

import yaml

from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.runs.find import find_run
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import EnvSpec


def with_weights(config: Config) -> Config:
    """Return the config with `load_weights` replaced by the path of the checkpoint it names; raises UsageError."""
    if config.load_weights is None:
        return config
    return dataclasses.replace(config, load_weights=str(find_weights(config.load_weights, config.output_dir)))


def find_weights(path: str, output_dir: str) -> Path:
    """The checkpoint folder: `path` itself, or the best one of the run that it means.

    Raises UsageError saying what there is instead.
    """
    folder = Path(path).parent if Path(path).name == "model.safetensors" else Path(path)
    if (folder / "model.safetensors").is_file() or (folder / "manifest.json").is_file():
        return folder.resolve()
    if folder.parent.name == "checkpoints" and folder.parent.is_dir():
        raise UsageError(f"load_weights: no '{folder.name}' in {folder.parent}; {_there(folder.parent)}", CHECKPOINT)
    try:
        checkpoints = find_run(path, output_dir) / "checkpoints"
    except UsageError as error:
        raise UsageError(f"load_weights: {error}; or name a checkpoint's folder") from error
    if not (checkpoints / "best").exists():
        raise UsageError(f"load_weights: no 'best' in {checkpoints}; {_there(checkpoints)}", CHECKPOINT)
    return (checkpoints / "best").resolve()


def check_weights(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError (exit 8) when the file is damaged, or its policy is another algorithm's or of another size.

    Where it fits and is of another environment, that is said.
    """
    if config.load_weights is None:
        return
    folder = Path(config.load_weights)
    algo, env = _saved_with(folder)
    if algo not in (None, config.algo.name):
        line = f"load_weights: {folder} is of algo={algo}, and this run has algo={config.algo.name}"
        raise UsageError(line, CHECKPOINT)
    is_other = env not in (None, config.env.id)
    try:
        params, _ = load_model(folder)
        make_policy(config, spec, 0).load(params)
    except CheckpointError as error:
        raise UsageError(f"load_weights: {error}", CHECKPOINT) from error
    except ValueError as error:
        advice = "env, algo, network and env.normalize_* must be as where it was saved"
        whose = f" is of {env}, and this run has {config.env.id}" if is_other else ""
        raise UsageError(f"load_weights: {folder}{whose}: {error}; {advice}", CHECKPOINT) from error
    if is_other:
        print(f"warning: load_weights: {folder} is of {env}; it fits {config.env.id}, too", file=sys.stderr)


def _saved_with(checkpoint: Path) -> tuple[str | None, str | None]:
    """The algorithm and the environment's id of its run; None where there is no such run any more."""
    try:
        node = yaml.safe_load((checkpoint.parents[1] / "config.yaml").read_text())
        return node["algo"]["name"], node["env"]["id"]
    except (OSError, yaml.YAMLError, KeyError, TypeError, IndexError):
        return None, None


def _there(checkpoints: Path) -> str:
    names = sorted(path.name for path in checkpoints.glob("*") if (path / "model.safetensors").is_file())
    return f"there is: {', '.join(names)}" if names else "there is none"
