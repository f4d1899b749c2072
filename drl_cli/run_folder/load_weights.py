"""`load_weights=PATH`: find the checkpoint, and take the values with which its weights were learned."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drl_cli.config.config import Config
from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.run_folder.checkpoint import MODEL
from drl_cli.run_folder.find import checkpoint_names, find_saved_run
from drl_cli.run_folder.saved_run import Run
from drl_cli.settings.env_names import typed_values


def with_weights(config: Config, words: Sequence[str] = (), find: Callable[[str, str], Path] | None = None) -> Config:
    """Return the config with the path of the checkpoint in `load_weights`. Raise UsageError if there is none.

    Observations and rewards are normalised as in the run that saved the weights, and the hidden layers have the same
    widths, unless the user's `words` say otherwise. `find` is by default `find_weights`.
    """
    if config.load_weights is None:
        return config
    path = (find or find_weights)(config.load_weights, config.output_dir)
    trained, typed = Run(path.parent.parent).config, typed_values(words)
    saved = {key: trained.get(f"env.{key}") for key in ("normalize_obs", "normalize_reward")}
    taken: Any = {key: is_on for key, is_on in saved.items() if is_on is not None and f"env.{key}" not in typed}
    hidden, network = trained.get("network.hidden"), config.network
    if isinstance(hidden, list) and "network.hidden" not in typed:
        network = dataclasses.replace(network, hidden=tuple(hidden))
    env = dataclasses.replace(config.env, **taken)
    return dataclasses.replace(config, load_weights=str(path), env=env, network=network)


def find_weights(path: str, output_dir: str) -> Path:
    """Return the checkpoint at `path`, or the best checkpoint of the run that `path` names. Raise UsageError.

    Of a run in mode=offline, it is the last checkpoint, which has the critics, too.
    """
    folder = Path(path).parent if Path(path).name == MODEL else Path(path)
    if (folder / MODEL).is_file() or (folder / "manifest.json").is_file():
        return folder.resolve()
    is_checkpoint = folder.parent.name == "checkpoints" and folder.parent.is_dir()
    if not is_checkpoint:
        try:
            checkpoints = find_saved_run(path, output_dir) / "checkpoints"
        except UsageError as error:
            raise UsageError(f"load_weights: {error}; or name a checkpoint's folder") from error
        is_offline = Run(checkpoints.parent).config.get("mode") == "offline"
        folder = checkpoints / ("last" if is_offline else "best")
    if is_checkpoint or not folder.exists():
        there = checkpoint_names(folder.parent)
        raise UsageError(f"load_weights: no '{folder.name}' in {folder.parent}; {there}", CHECKPOINT)
    return folder.resolve()
