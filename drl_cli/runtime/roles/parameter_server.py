"""ParameterServer: the newest versioned parameters, in a copy of its own."""

from pathlib import Path

from drl_cli.runtime.files.checkpoint import load_model, save_model
from drl_cli.runtime.messages import LoadParams
from drl_cli.types import Array


class ParameterServer:
    """A dead trainer does not invalidate what was pushed here."""

    def __init__(self) -> None:
        self.load: LoadParams | None = None
        self.params: Array | None = None

    def push(self, load: LoadParams, params: Array) -> int:
        """Keep a newer version, ignore an older one; returns the version held."""
        if self.load is None or load.version > self.load.version:
            self.load, self.params = load, params.copy()
        return self.load.version

    def pull(self) -> tuple[LoadParams, Array]:
        """The newest version; raises ValueError before the first push."""
        if self.load is None or self.params is None:
            raise ValueError("the parameter server has no parameters yet")
        return self.load, self.params

    def pull_if_newer(self, version: int) -> tuple[LoadParams | None, Array | None]:
        """The newest version if it is newer than the caller's, else (None, None)."""
        if self.load is None or self.load.version <= version:
            return None, None
        return self.load, self.params

    def save(self, folder: Path) -> Path:
        """Write the newest version to a folder; raises ValueError before the first push."""
        return save_model(folder, *self.pull(), {})

    def restore(self, folder: Path) -> LoadParams:
        """Hold exactly what `save` wrote, under its version; raises CheckpointError when that is damaged."""
        self.params, manifest = load_model(folder)
        counts = (manifest["version"], manifest["opt_steps"], manifest["env_steps"])
        self.load = LoadParams(*counts, exploration=manifest.get("exploration", {}))
        return self.load
