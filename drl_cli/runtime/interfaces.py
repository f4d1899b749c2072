"""Interfaces: the methods of each role that other roles call, as protocols.

`handle.ask(TrainerRole.train, header, columns)` calls a role, and mypy checks the name, the arguments and the result.
The classes in `roles/` have these methods with equal types, which mypy checks where `process_graph.py` gives a
`Handle[Trainer]` for a `Handle[TrainerRole]`. The protocols import no role and therefore neither torch nor gymnasium.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from drl_cli.run_folder.checkpoint_writer import Draft
from drl_cli.runtime.messages import (
    BatchTrainingData,
    EvalReport,
    InsertTransition,
    ReanalysisReport,
    SampleBatch,
    TrainReport,
    UpdatePriority,
)
from drl_cli.types import Array, Columns, LoadParams, State


class CollectRole(Protocol):
    """A worker, or a proxy with its workers."""

    def collect(self, params_header: LoadParams, params: Array | None = None) -> tuple[InsertTransition, Columns]: ...

    def close(self) -> None: ...


class WorkerRole(CollectRole, Protocol):
    """A worker."""

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class ReplayRole(Protocol):
    """A trajectory manager: one shard of the replay."""

    def insert(self, messages: Sequence[InsertTransition], *columns: Columns) -> None: ...

    def sample(self, message: SampleBatch) -> list[BatchTrainingData | Columns]: ...

    def draw(self, message: SampleBatch) -> tuple[BatchTrainingData, Columns]: ...

    def update_priorities(self, message: UpdatePriority | None) -> None: ...

    def begin_save(self, folder: str, previous: str | None) -> int: ...

    def save_part(self) -> dict[str, str] | None: ...

    def abort_save(self) -> None: ...

    def load(self, folder: str, manifest: Mapping[str, Any]) -> int: ...  # Any: json


class TrainerRole(Protocol):
    """A trainer."""

    def listen(self) -> tuple[str, int]: ...

    def join(self, address: tuple[str, int]) -> None: ...

    def train(self, header: BatchTrainingData, columns: Columns) -> tuple[TrainReport, UpdatePriority | None]: ...

    def train_and_publish(
        self, header: BatchTrainingData, columns: Columns, newest: LoadParams
    ) -> tuple[TrainReport, UpdatePriority | None, LoadParams | None, Array | None]: ...

    def publish(self, version: int, env_steps: int) -> tuple[LoadParams, Array]: ...

    def describe(self) -> dict[str, Any]: ...  # Any: json

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class ReanalyzerRole(Protocol):
    """A re-analyser."""

    def reanalyze(
        self,
        drawn: BatchTrainingData,
        columns: Columns,
        params_header: LoadParams | None = None,
        params: Array | None = None,
    ) -> tuple[ReanalysisReport, UpdatePriority]: ...


class ServerRole(Protocol):
    """The parameter server."""

    def push(self, params_header: LoadParams, params: Array) -> None: ...

    def pull(self) -> tuple[LoadParams, Array]: ...


class WriterRole(Protocol):
    """Writes checkpoints and models."""

    def commit(self, draft: Draft, params: Array, *states: State) -> str | OSError: ...

    def save(self, params_header: LoadParams, params: Array) -> str | OSError: ...

    def close(self, status: str) -> list[str]: ...


class ManageRole(WriterRole, Protocol):
    """Manage."""

    def report(self, scalars: Mapping[str, float], position: int) -> list[str]: ...

    def evaluate(self, params_header: LoadParams, params: Array) -> EvalReport: ...
