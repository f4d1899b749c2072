"""TrainerGroup: the orchestrator's connection to the trainers, which compute each update together."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from drl_cli.errors import Diverged
from drl_cli.optim.group import PeerLost
from drl_cli.runtime.edges.calls import GRACE_S
from drl_cli.runtime.interfaces import TrainerRole
from drl_cli.runtime.messages import BatchTrainingData, LoadParams, TrainReport, UpdatePriority
from drl_cli.runtime.place.ask import as_value, ask, ask_parts
from drl_cli.runtime.place.handles import ActorDied, Handle, Ref, get, wait
from drl_cli.types import Array, Columns, State
from drl_cli.utils.clock import now

Parts: TypeAlias = Sequence[Ref[BatchTrainingData | Columns]]
"""A header and columns for each trainer, one after the other."""


class TrainerGroup:
    """Calls all trainers, which average their gradients and keep equal parameters. The first trainer publishes them."""

    def __init__(self, trainers: Sequence[Handle[TrainerRole]]) -> None:
        self.trainers = trainers
        self.roles = roles(len(trainers))

    def connect(self) -> list[Ref[None]]:
        """Connect the trainers to each other if there are several. Return a reference to each trainer's answer."""
        if len(self.trainers) == 1:
            return []
        address = ask(self.trainers[0], TrainerRole.listen)
        return [ask(trainer, TrainerRole.join, as_value(address)) for trainer in self.trainers]

    def train(self, parts: Parts) -> tuple[list[Ref[TrainReport]], list[Ref[UpdatePriority | None]]]:
        """Call each trainer with its header and columns from `parts`. Return references to reports and priorities."""
        shares = zip(self.trainers, _pairs(parts), strict=True)
        calls = [ask_parts(trainer, 2, TrainerRole.train, header, columns) for trainer, (header, columns) in shares]
        return [report for report, _ in calls], [priorities for _, priorities in calls]

    def train_and_publish(
        self, parts: Parts, newest: LoadParams
    ) -> tuple[
        list[Ref[TrainReport]], list[Ref[UpdatePriority | None]], tuple[Ref[LoadParams | None], Ref[Array | None]]
    ]:
        """Call each trainer as `train` does, and the first one with the header of the newest version.

        The third result has references to the header and the parameters of the next version, as in `Trainer`.
        """
        ((header, columns),) = _pairs(parts[:2])
        report, priorities, params_header, params = ask_parts(
            self.trainers[0], 4, TrainerRole.train_and_publish, header, columns, newest
        )
        reports, all_priorities = TrainerGroup(self.trainers[1:]).train(parts[2:])
        return [report, *reports], [priorities, *all_priorities], (params_header, params)

    def publish(self, version: int, env_steps: int) -> tuple[Ref[LoadParams], Ref[Array]]:
        return ask_parts(self.trainers[0], 2, TrainerRole.publish, version, env_steps)

    def compiler_since(self) -> float | None:
        """Return since when a trainer waits for a compiler [s since the epoch], or None. Any thread may call this."""
        return min(filter(None, (trainer.told().compiler_since for trainer in self.trainers)), default=None)

    def describe(self) -> Ref[dict[str, Any]]:  # Any: json
        return ask(self.trainers[0], TrainerRole.describe)

    def state(self) -> Ref[State]:
        return ask(self.trainers[0], TrainerRole.state)

    def load_state(self, state: Ref[State] | State) -> list[Ref[None]]:
        return [ask(trainer, TrainerRole.load_state, as_value(state)) for trainer in self.trainers]

    def at_fault(self, reports: Sequence[Ref[TrainReport]], error: Diverged) -> Diverged:
        """Return the error of the trainer whose part of the batch has bad data, or `error` if all parts are good."""
        silent, until = list(reports), now() + GRACE_S
        while not error.is_data and silent and (ready := wait(silent, max(0.0, until - now()))):
            silent = [ref for ref in silent if ref not in ready]
            for ref in ready:
                try:
                    get(ref)
                except Diverged as other:
                    error = other if other.is_data else error
                except (ActorDied, PeerLost):  # this trainer can't report about its part of the batch
                    continue
        return error


def _pairs(parts: Parts) -> list[tuple[BatchTrainingData, Columns]]:
    """Return the header and the columns of each trainer as arguments of `ask`."""
    values = [as_value(part) for part in parts]
    return cast(list[tuple[BatchTrainingData, Columns]], [*zip(values[::2], values[1::2], strict=True)])


def roles(num: int) -> list[str]:
    """Return the role names of the trainers: `trainer`, or `trainer 0`, `trainer 1` and so on."""
    return ["trainer"] if num == 1 else [f"trainer {rank}" for rank in range(num)]
