"""ParameterServer: the newest versioned parameters, in a copy of its own."""

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
