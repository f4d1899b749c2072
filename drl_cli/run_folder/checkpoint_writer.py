"""CheckpointWriter: writes checkpoints and models to a run's folder, and removes old ones."""

import errno
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drl_cli.config.config import Config
from drl_cli.errors import CheckpointError
from drl_cli.run_folder import checkpoint, pruning
from drl_cli.run_folder.truncation import remove_left_behind
from drl_cli.types import Array, LoadParams, State
from drl_cli.utils.files import remove_folder, reserve, write_or_make_room

MANIFEST_BYTES = 2**16
"""The room that a checkpoint needs besides its arrays."""


@dataclass(frozen=True)
class Draft:
    """A checkpoint that manage has to finish, in the folder `path`.

    `params_header` describes the saved parameters. `counters` is the orchestrator's state, as JSON data. `sums` has the
    sha256 of each file that is already in the folder, by name. `roles` has the role of each state that manage writes.
    """

    path: str
    params_header: LoadParams
    counters: Mapping[str, Any]
    sums: Mapping[str, str]
    roles: tuple[str, ...]


class CheckpointWriter:
    """Writes one checkpoint or model at a time. `best` is the mean return of the best model.

    Manage has a writer, and so has the orchestrator, which writes checkpoints itself if manage can't.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.clock = config, config.clock
        self.checkpoints = folder / "checkpoints"
        self.reserve = folder / ".reserve"  # keeps room on the disk for the final weights
        self.lock = threading.Lock()
        self.best = float("-inf")
        if (self.checkpoints / "best").exists():
            self.best = float(checkpoint.read_manifest(self.checkpoints / "best")["mean"])

    def commit(self, draft: Draft, params: Array, *states: State) -> str | OSError:
        """Add the parameters and the states of `draft.roles`, and make it the last checkpoint. Return its new path.

        If the disk fails, return an OSError instead of raising it. The previous checkpoint then remains the last one.
        """
        files = dict(draft.sums)

        def drop_replay() -> None:
            for name in draft.sums:
                files.pop(name)
                (Path(draft.path) / name).unlink()

        with self.lock:
            try:
                write = partial(self._commit, draft, params, states, files)
                folder = write_or_make_room(write, *self._drop_older(), drop_replay, self._drop_reserve)
                remove_left_behind(self.checkpoints)
                pruning.prune(self.checkpoints, self.config.checkpoint.keep_last)
            except OSError as error:
                shutil.rmtree(draft.path, ignore_errors=True)
                return error
            finally:
                reserve(self.reserve, params.nbytes + MANIFEST_BYTES)
        return str(folder)

    def _commit(self, draft: Draft, params: Array, states: Sequence[State], files: dict[str, str]) -> Path:
        """Write the states and turn the draft into the last checkpoint. `files` has the sha256 of the draft's files."""
        path, version = Path(draft.path), draft.params_header.version
        needed = params.nbytes + sum(array.nbytes for state in states for array in state.values()) + 2**20
        if (free := shutil.disk_usage(path).free) < needed:
            problem = f"{needed / 2**20:.0f} MB are needed, {free / 2**20:.0f} MB are free"
            raise OSError(errno.ENOSPC, problem, str(path))
        for role, state in zip(draft.roles, states, strict=True):
            name = f"state.{role.replace(' ', '-')}.safetensors"
            files[name] = checkpoint.write_arrays(path / name, state)
        files[checkpoint.COUNTERS] = checkpoint.write_json(path / checkpoint.COUNTERS, draft.counters)
        folder = checkpoint.free_folder(self.checkpoints, draft.counters["counts"][self.clock.unit], version)
        return checkpoint.finish(path, folder, draft.params_header, params, files, {}, name="last")

    def save(self, params_header: LoadParams, params: Array) -> str | OSError:
        """Save only the model; return its folder, or the error if the disk fails even after everything that can go."""
        last = self.checkpoints / "last"
        with self.lock:
            folder = checkpoint.free_folder(self.checkpoints, self.clock.of(params_header), params_header.version)
            self._drop_reserve()
            write = partial(checkpoint.save_model, folder, params_header, params, {})
            try:
                return str(write_or_make_room(write, *self._drop_older(), lambda: checkpoint.drop_replay(last)))
            except (OSError, CheckpointError) as error:
                return error if isinstance(error, OSError) else OSError(errno.ENOSPC, str(error))

    def save_best(self, params_header: LoadParams, params: Array, statistics: Mapping[str, float]) -> None:
        """Save a model as the best one, with the `statistics` of its evaluation. Raise OSError if the disk fails."""
        with self.lock:
            folder = checkpoint.free_folder(
                self.checkpoints, self.clock.of(params_header), params_header.version, "-best"
            )
            write = partial(checkpoint.save_model, folder, params_header, params, statistics, name="best")
            write_or_make_room(write, *self._drop_older())
            pruning.prune_best(self.checkpoints)
            self.best = statistics["mean"]

    def close(self, status: str) -> list[str]:
        """Give the reserved room back. Return no problems, as `Manage.close` returns them."""
        self._drop_reserve()
        return []

    def _drop_reserve(self) -> None:
        self.reserve.unlink(missing_ok=True)

    def _drop_older(self) -> list[Callable[[], None]]:
        """Return functions that free disk space, to call in this order: each removes the oldest checkpoint left."""
        return [partial(remove_folder, path) for path in pruning.replaced(self.checkpoints)]
