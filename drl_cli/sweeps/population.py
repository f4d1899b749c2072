"""Population: the turns of its members in one file, and who copies whom after a round (Jaderberg et al. 2017)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from drl_cli.runs.run import read_json
from drl_cli.runtime.sections import HpoConfig
from drl_cli.settings.space import Space, Value, domain
from drl_cli.sweeps.sweep import whole

FILE = "population.json"


@dataclass
class Turn:
    """A member in a round: its values, and from which member's checkpoint it began (None: its own, or none).

    `start` and `env_steps` are those that it began and ended with; `score` is the mean return of its last evaluations.
    """

    values: dict[str, Value]
    source: int | None = None
    start: int = 0
    env_steps: int = 0
    state: Literal["running", "done", "failed"] = "running"
    score: float | None = None


class Population:
    """population.json in the sweep's folder, written whole at every change: one that was killed goes on with it.

    `fixed` are the overrides of every member; each trains for `round_steps` environment steps in each of `rounds`,
    which have a turn for each member. `is_ready` says that the checkpoints have been copied that the last round begins
    with. What is drawn at random follows from the seed and the number of the round.
    """

    def __init__(
        self, folder: Path, space: Space, fixed: Sequence[str], hpo: HpoConfig, *, seed: int, round_steps: int
    ) -> None:
        self.folder, self.space, self.fixed, self.hpo = folder, space, list(fixed), hpo
        self.seed, self.round_steps = seed, round_steps
        self.is_ready = True
        self.rounds: list[list[Turn]] = [[Turn(self._drawn(member)) for member in range(hpo.members)]]

    @classmethod
    def open(cls, folder: Path) -> "Population":
        """One that exists; raises ValueError when it is none."""
        content = read_json(folder / FILE)
        if not content.get("rounds"):
            raise ValueError(f"{folder} is no population: it has no readable {FILE}")
        space = {key: domain(known) for key, known in content["space"].items()}
        hpo = HpoConfig(**content["hpo"])
        numbers = {"seed": content["seed"], "round_steps": content["round_steps"]}
        population = cls(folder, space, content["fixed"], hpo, **numbers)
        population.is_ready = content["is_ready"]
        population.rounds = [[Turn(**turn) for turn in turns] for turns in content["rounds"]]
        return population

    def save(self) -> None:
        """In one piece."""
        content = {
            "hpo": asdict(self.hpo),
            "seed": self.seed,
            "round_steps": self.round_steps,
            "fixed": self.fixed,
            "space": {key: asdict(known) for key, known in self.space.items()},
            "is_ready": self.is_ready,
            "rounds": [[asdict(turn) for turn in turns] for turns in self.rounds],
        }
        with whole(self.folder / FILE) as path:
            path.write_text(json.dumps(content, indent=1))

    @property
    def turns(self) -> list[Turn]:
        """Of the last round that has begun."""
        return self.rounds[-1]

    @property
    def goal(self) -> int:
        """Environment steps at which this round ends."""
        return len(self.rounds) * self.round_steps

    @property
    def ranked(self) -> list[int]:
        """The members that are done with this round, the best first, of equal ones the first."""
        scores = {i: turn.score for i, turn in enumerate(self.turns) if turn.score is not None}
        return sorted(scores, key=lambda member: -scores[member])

    def next_round(self, can_copy: Sequence[bool]) -> None:
        """Exploit and explore: who failed, or is among the worst, copies one of the best and changes its values.

        At least one member must be done. A member that can't take a copy goes on as it was.
        """
        rng = np.random.default_rng([self.seed, len(self.rounds)])
        ranked, turns = self.ranked, self.turns
        count = max(1, int(len(turns) * self.hpo.quantile))
        best, others = ranked[:count], ranked[count:]
        behind = {i for i, turn in enumerate(turns) if turn.score is None} | set(others[-count:])
        new = []
        for member, turn in enumerate(turns):
            source = int(rng.choice(best))
            values = {key: self._explored(key, value, rng) for key, value in turns[source].values.items()}
            if member in behind and can_copy[member] and turn.score != turns[source].score:
                new.append(Turn(values, source, turns[source].env_steps))
            else:
                new.append(Turn(turn.values, None, turn.env_steps))
        self.rounds.append(new)
        self.is_ready = False
        self.save()

    def lineage(self, member: int) -> list[tuple[int, Turn]]:
        """What a member's weights have gone through: for each round the member that they were in, and its turn."""
        path: list[tuple[int, Turn]] = []
        for turns in reversed(self.rounds):
            path.append((member, turns[member]))
            source = turns[member].source
            member = member if source is None else source
        return path[::-1]

    def _drawn(self, member: int) -> dict[str, Value]:
        rng = np.random.default_rng([self.seed, 0, member])
        return {key: known.draw(rng) for key, known in self.space.items()}

    def _explored(self, key: str, value: Value, rng: np.random.Generator) -> Value:
        known = self.space[key]
        return known.draw(rng) if rng.random() < self.hpo.resample else known.near(value, rng)
