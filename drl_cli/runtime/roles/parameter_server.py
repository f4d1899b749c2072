"""ParameterServer: keeps the newest parameter version for roles that start later or are restarted."""

from drl_cli.types import Array, LoadParams


class ParameterServer:
    """Keeps a copy of the newest version, so that the loss of a trainer or its node loses no parameters.

    In mode=async, the copy may be 0.1 s older than the newest version (`PUSH_S` in orchestrator/learning.py).

    Workers normally receive parameters with `collect`. The server is only read for a restarted worker or proxy, for a
    restarted manage, for re-analysers, and for the last save after an error.
    """

    def __init__(self) -> None:
        self.params_header: LoadParams | None = None
        self.params: Array | None = None

    def push(self, params_header: LoadParams, params: Array) -> None:
        """Store a version if it is newer."""
        if self.params_header is None or params_header.version > self.params_header.version:
            self.params_header, self.params = params_header, params.copy()

    def pull(self) -> tuple[LoadParams, Array]:
        """Return the newest version. Raise ValueError before the first push."""
        if self.params_header is None or self.params is None:
            raise ValueError("the parameter server has no parameters yet")
        return self.params_header, self.params
