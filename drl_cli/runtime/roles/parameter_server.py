"""ParameterServer: the newest versioned parameters, for those that come late or again."""

from pathlib import Path

from drl_cli.runtime.files.checkpoint import load_model, save_model
from drl_cli.runtime.messages import LoadParams, ProcessUse
from drl_cli.runtime.place.usage import OwnUse
from drl_cli.types import Array


class ParameterServer:
    """It keeps a copy of what is pushed, so that nothing is lost with the trainer or with the trainer's node.

    Workers normally get parameters along with `collect`, by a reference to what the trainer published. The server is
    read for a replaced worker or proxy, for a restarted manage, and by the rescue, where that reference leads nowhere.
    """

    def __init__(self) -> None:
        self.params_header: LoadParams | None = None
        self.params: Array | None = None
        self.use = OwnUse()

    def push(self, params_header: LoadParams, params: Array) -> tuple[ProcessUse, ...]:
        """Keep a newer version, ignore an older one; returns what its process has used, where it is time to."""
        if self.params_header is None or params_header.version > self.params_header.version:
            self.params_header, self.params = params_header, params.copy()
        return self.use.take()

    def pull(self) -> tuple[LoadParams, Array]:
        """The newest version; raises ValueError before the first push."""
        if self.params_header is None or self.params is None:
            raise ValueError("the parameter server has no parameters yet")
        return self.params_header, self.params

    def pull_if_newer(self, version: int) -> tuple[LoadParams | None, Array | None]:
        """The newest version if it is newer than the caller's, else (None, None)."""
        if self.params_header is None or self.params_header.version <= version:
            return None, None
        return self.params_header, self.params

    def save(self, folder: Path) -> Path:
        """Write the newest version to a folder; raises ValueError before the first push."""
        return save_model(folder, *self.pull(), {})

    def restore(self, folder: Path) -> LoadParams:
        """Hold exactly what `save` wrote, under its version; raises CheckpointError when that is damaged."""
        self.params, manifest = load_model(folder)
        counts = (manifest["version"], manifest["opt_steps"], manifest["env_steps"])
        self.params_header = LoadParams(*counts, exploration=manifest.get("exploration", {}))
        return self.params_header
