"""`load_weights=PATH`: which checkpoint that is, and whether this run's policy can take it; before anything starts."""

from pathlib import Path

from drl_cli.cli.errors import CHECKPOINT, UsageError
from drl_cli.cli.runs import find_run
from drl_cli.runtime.config import Config
from drl_cli.runtime.errors import CheckpointError
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import EnvSpec


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
    """Raise UsageError (exit 8) when the file is damaged or its policy has another size than this run's."""
    if config.load_weights is None:
        return
    folder = Path(config.load_weights)
    try:
        params, _ = load_model(folder)
        make_policy(config, spec, 0).load(params)
    except CheckpointError as error:
        raise UsageError(f"load_weights: {error}", CHECKPOINT) from error
    except ValueError as error:
        advice = "env, algo, network and env.normalize_* must be as where it was saved"
        raise UsageError(f"load_weights: {folder}: {error}; {advice}", CHECKPOINT) from error


def _there(checkpoints: Path) -> str:
    names = sorted(path.name for path in checkpoints.glob("*") if (path / "model.safetensors").is_file())
    return f"there is: {', '.join(names)}" if names else "there is none"
