"""ReplayShards: the orchestrator's edge to one or several trajectory managers, which share the capacity."""

from collections.abc import Sequence

import numpy as np

from drl_cli.runtime.messages import InsertTransition, SampleBatch
from drl_cli.runtime.place.handles import Handle, Ref
from drl_cli.types import State
from drl_cli.utils.seeding import rng_state, set_rng_state


class ReplayShards:
    """A block goes to a random shard, batches come from a random one, priorities go back to where they are due.

    Calls to one shard are answered in the order in which they are made, so a shard that was sent rows has them by the
    time it is sampled.
    """

    def __init__(self, shards: Sequence[Handle], rng: np.random.Generator) -> None:
        self.shards, self.rng = shards, rng
        self.filled: set[int] = set()

    def insert(self, header: InsertTransition, columns: Ref) -> Ref:
        """Send rows; the reference is to the shard's count of inserts."""
        shard = self._choose(range(len(self.shards)))
        if header.rows:
            self.filled.add(shard)
        return self.shards[shard].call("insert", header, columns)

    def sample(self, message: SampleBatch) -> tuple[int, list[Ref]]:
        """The number of the shard that is asked, and references to a header and columns for each trainer in turn."""
        shard = self._choose(sorted(self.filled))
        return shard, self.shards[shard].call("sample", message, results=2 * message.num_trainers)

    def update_priorities(self, shard: int, message: Ref) -> Ref:
        """Send an UpdatePriority back to the shard that its batch came from."""
        return self.shards[shard].call("update_priorities", message)

    def state(self) -> State:
        """The generator that chooses shards, and which shards have rows; the shards save their own states."""
        return {"rng": rng_state(self.rng), "filled": np.array(sorted(self.filled), np.int64)}

    def load_state(self, state: State) -> None:
        """Go on from `state()`; the shards must hold the rows that they held then."""
        set_rng_state(self.rng, state["rng"])
        self.filled = {shard for shard in state["filled"].tolist() if shard < len(self.shards)}

    def _choose(self, shards: Sequence[int]) -> int:
        return shards[0] if len(shards) == 1 else int(self.rng.choice(shards))
