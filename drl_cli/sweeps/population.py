"""`drl-train -m hpo=pbt`: train a population in rounds. After a round, the worst members copy the best and explore.

Population based training, Jaderberg et al. 2017.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from drl_cli.config.config import Config
from drl_cli.errors import DONE, RESOURCES, SWEEP, UsageError, as_usage_error
from drl_cli.run_folder.checkpoint import adopt
from drl_cli.run_folder.resume import verdict
from drl_cli.run_folder.saved_run import Run
from drl_cli.settings.conf import groups
from drl_cli.settings.space import Space, Value, typed
from drl_cli.settings.space import space as read_space
from drl_cli.sweeps.jobs import claim_sweep, is_dry_run, run_jobs
from drl_cli.sweeps.results import print_values, write_best
from drl_cli.sweeps.search import SEARCH_KEYS, check_corners, refuse_keys
from drl_cli.sweeps.sweep import Job, SearchRecord, Sweep, check_readable
from drl_cli.utils.files import write_csv
from drl_cli.utils.shown import print, score_text

MEMBER_KEYS = ("seed", "total_env_steps")
"""Keys that the population sets for every member."""
MAX_RESTARTS = 3
"""Maximum number of restarts of a killed member in one round. If it is killed once more, the member has failed."""


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
    """The rounds of a population. Random draws depend only on seed and round, so that a resumed round repeats them."""

    FILE: ClassVar = "population.json"

    round_steps: int  # environment steps of each member in each round
    is_ready: bool = True  # whether the checkpoints for the last round have been copied
    rounds: list[list[Turn]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.rounds:
            rngs = [np.random.default_rng([self.seed, 0, member]) for member in range(self.hpo.members)]
            self.rounds = [[Turn({key: domain.draw(rng) for key, domain in self.space.items()}) for rng in rngs]]

    @classmethod
    def open(cls, folder: Path) -> "Population":
        """Return the population in this folder. Raise UsageError (exit 8) if it is missing or damaged."""
        with check_readable(folder / cls.FILE):
            content = cls.read(folder)
            rounds = [[Turn(**turn) for turn in turns] for turns in content["rounds"]]
            return cls(**content | {"rounds": rounds})

    @property
    def turns(self) -> list[Turn]:
        """The turns of the current round, one per member."""
        return self.rounds[-1]

    @property
    def goal(self) -> int:
        """The number of environment steps at which the current round ends."""
        return len(self.rounds) * self.round_steps

    @property
    def ranked(self) -> list[int]:
        """The members that have finished the current round, best score first."""
        scores = {i: turn.score for i, turn in enumerate(self.turns) if turn.score is not None}
        return sorted(scores, key=lambda member: -scores[member])

    def next_round(self, can_copy: Sequence[bool]) -> None:
        """Begin a round. If `can_copy` allows it, failed and bad members copy one of the best members and explore."""
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
        """Return the history of a member's weights: for each round, the member that trained them, and its turn."""
        path: list[tuple[int, Turn]] = []
        for turns in reversed(self.rounds):
            path.append((member, turns[member]))
            source = turns[member].source
            member = member if source is None else source
        return path[::-1]

    def _explore(self, key: str, value: Value, rng: np.random.Generator) -> Value:
        domain = self.space[key]
        return domain.draw(rng) if rng.random() < self.hpo.resample else domain.near(value, rng)


def new_population(sweep: Sweep, output_dir: str, options: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Check the corners of the search space, then train. Return the exit code. Raise UsageError if a check fails."""
    from drl_cli.settings.fill import with_short_warm_up

    refuse_keys(options, SEARCH_KEYS, "is of a search, not of hpo=pbt")
    fixed, space = read_space(overrides)
    check_space(space)
    configs = check_corners(sweep, fixed, space, options)
    config, hpo = configs[0], configs[0].hpo
    check_rounds(config)
    round_steps = -(-config.total_env_steps // hpo.rounds)
    in_round = replace(config, total_env_steps=round_steps)  # the warm-up of the first round is that of the run
    _, changes = with_short_warm_up(in_round, [*fixed, *(f"{key}=" for key in space)])
    print("".join(f"{line}\n" for line in changes), end="")
    text = f"{hpo.members} members, {hpo.rounds} rounds of {round_steps:,} env steps"
    if is_dry_run(options, f"{text} over {', '.join(space)}; all checks passed at {len(configs)} points"):
        return DONE
    sweep.make_folder(output_dir)
    with claim_sweep(sweep.folder):
        fixed = [arg for arg in fixed if arg.partition("=")[0] not in MEMBER_KEYS]
        population = Population(sweep.folder, space, fixed, hpo, config.seed, round_steps)
        population.save()
        return train(sweep, population, configs)


def resume_population(sweep: Sweep, options: Mapping[str, str]) -> int:
    """Resume the population in the sweep's folder, with a new number of rounds if `hpo.rounds` is set."""
    unchangeable = ("members", "quantile", "resample", "evaluations")
    refuse_keys(options, [*SEARCH_KEYS, *unchangeable], "can't change any more; hpo.rounds can")
    population = Population.open(sweep.folder)
    configs = check_corners(sweep, population.fixed, population.space, options)
    if "hpo.rounds" in options:
        population.hpo = replace(population.hpo, rounds=configs[0].hpo.rounds)
    if is_dry_run(options, f"{len(population.rounds)} of {population.hpo.rounds} rounds begun; all checks passed"):
        return DONE
    return train(sweep, population, configs)


def check_space(space: Space) -> None:
    """Raise UsageError if a key can't change while a member trains, or does not affect learning."""
    if not space:
        raise UsageError("hpo: nothing to change: say for example 'algo.lr=tag(log,interval(1e-4,3e-3))'")
    problems = []
    for key in space:
        if key in MEMBER_KEYS:
            problems.append(f"{key}: the population sets it for every member: give one value")
        elif key in groups() or verdict(key) == "impossible":
            why = "the saved weights, replay or environment fit one value only"
            problems.append(
                f"{key}: can't change while a member trains: {why}; give one value, or search it by hpo=tpe"
            )
        elif verdict(key) == "free":
            problems.append(f"{key}: changes nothing that is learned: give one value")
    if problems:
        raise UsageError(problems)


def check_rounds(config: Config) -> None:
    """Raise UsageError if the rounds can't have equal lengths for all members."""
    problems = [
        f"stop.{name}: all members train equally long; leave it out"
        for name, value in (("return", config.stop.return_), ("wall_s", config.stop.wall_s))
        if value is not None
    ]
    if config.is_offline:
        problems.append("hpo=pbt: a round is a number of environment steps, and mode=offline has none; say hpo=tpe")
    if config.hpo.rounds > config.total_env_steps:
        problems.append(f"hpo.rounds={config.hpo.rounds}: more than total_env_steps={config.total_env_steps}")
    if problems:
        raise UsageError(problems)


def train(sweep: Sweep, population: Population, configs: Sequence[Config]) -> int:
    """Train all remaining rounds, then print and write the results. Return the exit code."""
    rounds, hpo = Rounds(sweep, population), population.hpo
    print(f"population of {len(population.turns)}: round {len(population.rounds)} of {hpo.rounds}  ->  {sweep.folder}")
    while True:
        with as_usage_error(OSError, prefix="a checkpoint can't be copied: ", exit_code=RESOURCES):
            jobs = rounds.begin()
        run_jobs(sweep, jobs, configs, rounds.killed_jobs)
        rounds.end()
        write_turns(population)
        if not population.ranked:
            print("error: no member was done with this round", file=sys.stderr)
            print(f"next: drl-train -m resume={shlex.quote(str(sweep.folder))}", file=sys.stderr)
            return SWEEP
        best = population.ranked[0]
        text = f"round {len(population.rounds)} of {hpo.rounds}: best member {best + 1}"
        print(f"{text}  {turn_text(population.turns[best])}", flush=True)
        if len(population.rounds) >= hpo.rounds:
            return finish_population(sweep, population)
        population.next_round([job.has_begun for job in sweep.jobs])
        for member, turn in enumerate(population.turns):
            if turn.source is not None:
                print(f"  member {member + 1} goes on from member {turn.source + 1}  {' '.join(typed(turn.values))}")


class Rounds:
    """Train the members of a population as jobs of a sweep. Each member has one run, which every round resumes."""

    def __init__(self, sweep: Sweep, population: Population) -> None:
        self.sweep, self.population = sweep, population
        self._restarts: Counter[Job] = Counter()
        sweep.name_keys(population.space)

    def begin(self) -> list[Job]:
        """Copy the checkpoints with which the round begins, and return the unfinished jobs. Raise OSError on errors."""
        population, sweep = self.population, self.sweep
        if not sweep.jobs:
            sweep.add([self._overrides(member) for member in range(len(population.turns))])
        if not population.is_ready:
            for member, turn in enumerate(population.turns):
                if turn.source is not None:
                    source, run = sweep.jobs[turn.source].run, sweep.jobs[member].run
                    assert source is not None
                    assert run is not None
                    adopt(run / "checkpoints", (source / "checkpoints" / "last").resolve(strict=True))
                    (run / "summary.json").unlink(missing_ok=True)  # from an earlier round
            population.is_ready = True
            population.save()
        for member, job in enumerate(sweep.jobs):
            job.overrides, job.goal, job.exit_code = self._overrides(member), population.goal, None
            job.changes = ["confirm=true", *typed(population.turns[member].values), f"total_env_steps={job.goal}"]
            job.update(sweep.file(job))
        sweep.update_labels()
        sweep.save()
        self._restarts.clear()
        return [job for job in sweep.jobs if not job.is_done]

    def killed_jobs(self) -> list[Job]:
        """Return the killed or interrupted jobs with fewer than MAX_RESTARTS restarts in this round."""
        ended = [job for job in self.sweep.jobs if job.status in ("killed", "interrupted")]
        jobs = [job for job in ended if self._restarts[job] < MAX_RESTARTS]
        self._restarts.update(jobs)
        return jobs

    def end(self) -> None:
        """Set the state and the score of each turn from the evaluations of this round."""
        for job, turn in zip(self.sweep.jobs, self.population.turns, strict=True):
            run = Run(job.run) if job.run is not None and job.is_done else None
            returns = run.curve.returns[run.curve.positions > turn.start] if run else np.zeros(0)
            score = float(np.mean(returns[-self.population.hpo.evaluations :])) if len(returns) else np.nan
            turn.env_steps = run.env_steps if run else turn.start
            turn.state, turn.score = ("done", score) if np.isfinite(score) else ("failed", None)
        self.population.save()

    def _overrides(self, member: int) -> list[str]:
        population = self.population
        own = [f"seed={population.seed + member}", f"total_env_steps={population.goal}"]
        return [*population.fixed, *typed(population.turns[member].values), *own]


def turn_text(turn: Turn) -> str:
    """Return the turn's score and values as text. If the turn has no score, return its state and values."""
    return "  ".join([score_text(turn.score) if turn.score is not None else turn.state, *typed(turn.values)])


def finish_population(sweep: Sweep, population: Population) -> int:
    """Print and write the history of the best member. Return exit code 0."""
    best, folder = population.ranked[0], population.folder
    if failed := [str(i) for i, turn in enumerate(population.turns, 1) if turn.state == "failed"]:
        print(f"warning: failed in the last round: member {', '.join(failed)}", file=sys.stderr)
    rows = []
    for i, turn in enumerate(population.turns):
        more = {"seed": population.seed + i, "steps": f"{turn.env_steps:,}", "member": i + 1}
        rows.append((turn.score, turn.values, more))
    print_values("score", rows, folder / "population.csv")
    print(f"how the best came about (all: {folder / 'population.csv'}):")
    path = population.lineage(best)
    for member, turn in path:
        print(f"  {turn.start:>10,} to {turn.env_steps:>10,} env steps  member {member + 1}  {turn_text(turn)}")
    schedule = [[turn.start, *turn.values.values()] for _, turn in path]
    write_csv(folder / "schedule.csv", ["from_env_steps", *population.space], schedule)
    write_best(folder, typed(population.turns[best].values))
    print(f"next: drl-eval run={shlex.quote(str(sweep.jobs[best].run))} checkpoint=last episodes=100")
    print(f"      its last values are in {folder / 'experiment' / 'best.yaml'}, all of them in schedule.csv")
    return DONE


def write_turns(population: Population) -> None:
    """Write population.csv, with a row for each round and member. Members are numbered like their jobs, from 1."""
    rows = [
        [
            *(number, member, None if turn.source is None else turn.source + 1, turn.start, turn.env_steps),
            *(turn.state, turn.score, *turn.values.values()),
        ]
        for number, turns in enumerate(population.rounds, 1)
        for member, turn in enumerate(turns, 1)
    ]
    head = ["round", "member", "source", "start", "env_steps", "state", "score", *population.space]
    write_csv(population.folder / "population.csv", head, rows)
