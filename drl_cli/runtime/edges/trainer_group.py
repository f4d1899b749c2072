"""TrainerGroup: the orchestrator's connection to the trainers, which compute each update together."""

from collections.abc import Sequence

from drl_cli.errors import Diverged
from drl_cli.optim.group import PeerLost
from drl_cli.runtime.edges.calls import GRACE_S
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.place.handles import ActorDied, Handle, Ref, get, wait
from drl_cli.types import State
from drl_cli.utils.clock import now


class TrainerGroup:
    """Calls all trainers, which average their gradients and keep equal parameters. The first trainer publishes them."""

    def __init__(self, trainers: Sequence[Handle]) -> None:
        self.trainers = trainers
        self.roles = roles(len(trainers))

    def connect(self) -> list[Ref]:
        """Connect the trainers to each other if there are several. Return a reference to each trainer's answer."""
        if len(self.trainers) == 1:
            return []
        address = self.trainers[0].call("listen")
        return [trainer.call("join", address) for trainer in self.trainers]

    def train(self, parts: Sequence[Ref]) -> tuple[list[Ref], list[Ref]]:
        """Call each trainer with its header and columns from `parts`. Return references to reports and priorities."""
        pairs = zip(self.trainers, parts[::2], parts[1::2], strict=True)
        calls = [trainer.call("train", header, columns, results=2) for trainer, header, columns in pairs]
        return [report for report, _ in calls], [priorities for _, priorities in calls]

    def train_and_publish(
        self, parts: Sequence[Ref], newest: LoadParams
    ) -> tuple[list[Ref], list[Ref], tuple[Ref, Ref]]:
        """Call each trainer as `train` does, and the first one with the header of the newest version.

        The third result has references to the header and the parameters of the next version, as in `Trainer`.
        """
        header, columns, *others = parts
        report, priorities, *version = self.trainers[0].call("train_and_publish", header, columns, newest, results=4)
        reports, all_priorities = TrainerGroup(self.trainers[1:]).train(others)
        return [report, *reports], [priorities, *all_priorities], (version[0], version[1])

    def publish(self, version: int, env_steps: int) -> tuple[Ref, Ref]:
        params_header, params = self.trainers[0].call("publish", version, env_steps, results=2)
        return params_header, params

    def describe(self) -> Ref:
        return self.trainers[0].call("describe")

    def state(self) -> Ref:
        return self.trainers[0].call("state")

    def load_state(self, state: Ref | State) -> list[Ref]:
        return [trainer.call("load_state", state) for trainer in self.trainers]

    def at_fault(self, reports: Sequence[Ref], error: Diverged) -> Diverged:
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


def roles(num: int) -> list[str]:
    """Return the role names of the trainers: `trainer`, or `trainer 0`, `trainer 1` and so on."""
    return ["trainer"] if num == 1 else [f"trainer {rank}" for rank in range(num)]
