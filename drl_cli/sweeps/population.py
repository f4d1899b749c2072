"""Population: the record of its members' turns, and who copies whom after a round (Jaderberg et al. 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from drl_cli.settings.space import Value
from drl_cli.sweeps.sweep import SearchRecord, check_readable


@dataclass
class Turn:
    """The training of one member in one round."""

    values: dict[str, Value]
    source: int | None = None  # the member whose checkpoint was copied
    start: int = 0  # environment steps before the turn
    env_steps: int = 0  # environment steps after the turn
    state: Literal["running", "done", "failed"] = "running"
    score: float | None = None  # mean return of the turn's last evaluations


@dataclass
class Population(SearchRecord):
    """The rounds of a population. Random draws follow from the seed and the round: a resumed round repeats them."""

    FILE: ClassVar = "population.json"

    round_steps: int  # environment steps of each turn
    is_ready: bool = True  # whether the checkpoints for the last round have been copied
    rounds: list[list[Turn]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.rounds:
            self.rounds = [[Turn(self._draw_values(member)) for member in range(self.hpo.members)]]

    @classmethod
    def open(cls, folder: Path) -> "Population":
        """Return the population in this folder; raise UsageError (exit 8) if it is missing or damaged."""
        with check_readable(folder / cls.FILE):
            content = cls.read(folder)
            rounds = [[Turn(**turn) for turn in turns] for turns in content["rounds"]]
            return cls(**content | {"rounds": rounds})

    @property
    def turns(self) -> list[Turn]:
        """The turns of the last round that has begun, by member."""
        return self.rounds[-1]

    @property
    def goal(self) -> int:
        """Environment steps at which the last round ends."""
        return len(self.rounds) * self.round_steps

    @property
    def ranked(self) -> list[int]:
        """The members that are done with the last round, best score first."""
        scores = {i: turn.score for i, turn in enumerate(self.turns) if turn.score is not None}
        return sorted(scores, key=lambda member: -scores[member])

    def next_round(self, can_copy: Sequence[bool]) -> None:
        """Begin a round: each failed or bad member copies one of the best, if it `can_copy`, and explores."""
        rng = np.random.default_rng([self.seed, len(self.rounds)])
        ranked, turns = self.ranked, self.turns
        count = max(1, int(len(turns) * self.hpo.quantile))
        best, others = ranked[:count], ranked[count:]
        behind = {i for i, turn in enumerate(turns) if turn.score is None} | set(others[-count:])
        new = []
        for member, turn in enumerate(turns):
            source = int(rng.choice(best))
            values = {key: self._explore(key, value, rng) for key, value in turns[source].values.items()}
            if member in behind and can_copy[member] and turn.score != turns[source].score:
                new.append(Turn(values, source, turns[source].env_steps))
            else:
                new.append(Turn(turn.values, None, turn.env_steps))
        self.rounds.append(new)
        self.is_ready = False
        self.save()

    def lineage(self, member: int) -> list[tuple[int, Turn]]:
        """Return the history of a member's weights: for each round the member that trained them, and its turn."""
        path: list[tuple[int, Turn]] = []
        for turns in reversed(self.rounds):
            path.append((member, turns[member]))
            source = turns[member].source
            member = member if source is None else source
        return path[::-1]

    def _draw_values(self, member: int) -> dict[str, Value]:
        rng = np.random.default_rng([self.seed, 0, member])
        return {key: domain.draw(rng) for key, domain in self.space.items()}

    def _explore(self, key: str, value: Value, rng: np.random.Generator) -> Value:
        domain = self.space[key]
        return domain.draw(rng) if rng.random() < self.hpo.resample else domain.near(value, rng)
