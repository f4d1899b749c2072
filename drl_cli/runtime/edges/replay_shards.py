"""ReplayShards: the orchestrator's connection to the trajectory managers, each of which stores a part of the replay."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from drl_cli.runtime.interfaces import ReplayRole
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch, UpdatePriority
from drl_cli.runtime.place.handles import Handle, Ref
from drl_cli.types import Columns, State
from drl_cli.utils.seeding import rng_state, set_rng_state


class ReplayShards:
    """Inserts each block into a random shard, and draws the batches of each train call from a random shard.

    A shard handles its calls in order, so a sample can use the rows of all earlier inserts.
    """

    def __init__(self, shards: Sequence[Handle[ReplayRole]], rng: np.random.Generator) -> None:
        self.shards, self.rng = shards, rng
        self.filled: set[int] = set()

    def insert(
        self, headers: Sequence[InsertTransition], columns: Sequence[Ref[Columns]]
    ) -> list[tuple[Ref[None], list[int]]]:
        """Insert blocks. Return for each call the reference to its answer, and the indices of its blocks.

        One call inserts all blocks of a shard, because a call takes more time than an insert.
        """
        shares: dict[int, list[int]] = {}
        for i, header in enumerate(headers):
            shard = self._choose(range(len(self.shards)))
            shares.setdefault(shard, []).append(i)
            if header.rows:
                self.filled.add(shard)
        answers = []
        for shard, own in shares.items():
            blocks = [cast(Columns, columns[i]) for i in own]
            answers.append((self.shards[shard].ask(ReplayRole.insert, [headers[i] for i in own], *blocks), own))
        return answers

    def sample(self, message: SampleBatch) -> tuple[int, list[tuple[BatchTrainingData, Columns]]]:
        """Draw batches. Return the chosen shard's number, and a header and columns for each trainer.

        Both are references, typed as arguments of `ask`.
        """
        shard = self._choose(sorted(self.filled))
        parts = self.shards[shard].ask_parts(2 * message.num_trainers, ReplayRole.sample, message)
        return shard, cast(list[tuple[BatchTrainingData, Columns]], [*zip(parts[::2], parts[1::2], strict=True)])

    def draw(self, message: SampleBatch) -> tuple[int, tuple[Ref[BatchTrainingData], Ref[Columns]]]:
        """Draw rows for a re-analyser. Return the chosen shard's number, and a header and observations (references)."""
        shard = self._choose(sorted(self.filled))
        return shard, self.shards[shard].ask_parts(2, ReplayRole.draw, message)

    def update_priorities(self, shard: int, message: Ref[UpdatePriority | None]) -> Ref[None]:
        return self.shards[shard].ask(ReplayRole.update_priorities, cast(UpdatePriority, message))

    def state(self) -> State:
        return {"rng": rng_state(self.rng), "filled": np.array(sorted(self.filled), np.int64)}

    def load_state(self, state: State) -> None:
        set_rng_state(self.rng, state["rng"])
        self.filled = {shard for shard in state["filled"].tolist() if shard < len(self.shards)}

    def _choose(self, shards: Sequence[int]) -> int:
        return shards[0] if len(shards) == 1 else int(self.rng.choice(shards))
