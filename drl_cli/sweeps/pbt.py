"""`drl-train -m hpo=pbt`: members train side by side in rounds; after each the worst go on from copies of the best."""

import csv
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from drl_cli.errors import DONE, RESOURCES, SWEEP, UsageError
from drl_cli.runs.changes import verdict
from drl_cli.runtime.config import Config
from drl_cli.settings.conf import groups
from drl_cli.settings.space import Space, typed
from drl_cli.settings.space import space as space_of
from drl_cli.sweeps.hpo import OF_SEARCH, check_corners, refuse_keys, write_best
from drl_cli.sweeps.jobs import alone, is_dry_run, opened, run_jobs
from drl_cli.sweeps.population import Population, Turn
from drl_cli.sweeps.rounds import Rounds
from drl_cli.sweeps.sweep import Sweep, whole

OWN = ("seed", "total_env_steps")
"""Keys that every member has from the population."""


def new_population(sweep: Sweep, output_dir: str, ours: Mapping[str, str], rest: Sequence[str]) -> int:
    """Check the corners of the space, then train; returns the exit code. Raises UsageError."""
    refuse_keys(ours, OF_SEARCH, "is of a search, not of hpo=pbt")
    fixed, space = space_of(rest)
    check_space(space)
    configs = check_corners(sweep, fixed, space, ours)
    config, hpo = configs[0], configs[0].hpo
    check_rounds(config)
    round_steps = -(-config.total_env_steps // hpo.rounds)
    what = f"{hpo.members} members, {hpo.rounds} rounds of {round_steps:,} env steps"
    if is_dry_run(ours, f"{what} over {', '.join(space)}; all checks passed at {len(configs)} points"):
        return DONE
    sweep.make_folder(output_dir)
    with alone(sweep.folder):
        fixed = [arg for arg in fixed if arg.partition("=")[0] not in OWN]
        population = Population(sweep.folder, space, fixed, hpo, seed=config.seed, round_steps=round_steps)
        population.save()
        return train(sweep, population, configs)


def resumed_population(sweep: Sweep, ours: Mapping[str, str]) -> int:
    """Go on with the population in this folder, for another number of rounds where that is said; the exit code."""
    others = ("members", "quantile", "resample", "evaluations")
    refuse_keys(ours, [*OF_SEARCH, *others], "can't change any more; hpo.rounds can")
    population = opened(Population.open, sweep.folder)
    configs = check_corners(sweep, population.fixed, population.space, ours)
    if "hpo.rounds" in ours:
        population.hpo = replace(population.hpo, rounds=configs[0].hpo.rounds)
    if is_dry_run(ours, f"{len(population.rounds)} of {population.hpo.rounds} rounds begun; all checks passed"):
        return DONE
    return train(sweep, population, configs)


def check_space(space: Space) -> None:
    """Raise UsageError where a key can't change while a member trains, or would change nothing that is learned."""
    if not space:
        raise UsageError("hpo: nothing to change: say for example 'algo.lr=tag(log,interval(1e-4,3e-3))'")
    problems = []
    for key in space:
        if key in OWN:
            problems.append(f"{key}: every member has its own from the population: give one value")
        elif key in groups() or verdict(key) == "impossible":
            problems.append(f"{key}: can't change while a member trains: what it has saved depends on it")
        elif verdict(key) == "free":
            problems.append(f"{key}: changes nothing that is learned: give one value")
    if problems:
        raise UsageError(problems)


def check_rounds(config: Config) -> None:
    """Raise UsageError where the rounds can't be of equal length for all."""
    problems = [
        f"stop.{name}: a population's members train for as long as each other; leave it out"
        for name, value in (("return", config.stop.return_), ("wall_s", config.stop.wall_s))
        if value is not None
    ]
    if config.hpo.rounds > config.total_env_steps:
        problems.append(f"hpo.rounds={config.hpo.rounds}: more than total_env_steps={config.total_env_steps}")
    if problems:
        raise UsageError(problems)


def train(sweep: Sweep, population: Population, configs: Sequence[Config]) -> int:
    """All rounds that are left, and what comes of them; returns the exit code."""
    rounds, hpo = Rounds(sweep, population), population.hpo
    print(f"population of {len(population.turns)}: round {len(population.rounds)} of {hpo.rounds}  ->  {sweep.folder}")
    while True:
        try:
            jobs = rounds.begin()
        except OSError as error:
            raise UsageError(f"a checkpoint can't be copied: {error}", RESOURCES) from error
        run_jobs(sweep, jobs, configs, more=rounds.again)
        rounds.end()
        write_turns(population)
        if not population.ranked:
            print("error: no member was done with this round", file=sys.stderr)
            print(f"next: drl-train -m resume={shlex.quote(str(sweep.folder))}", file=sys.stderr)
            return SWEEP
        best = population.ranked[0]
        said = f"round {len(population.rounds)} of {hpo.rounds}: best member {best + 1}"
        print(f"{said}  {described(population.turns[best])}", flush=True)
        if len(population.rounds) >= hpo.rounds:
            return close(sweep, population)
        population.next_round([job.has_begun for job in sweep.jobs])
        for member, turn in enumerate(population.turns):
            if turn.source is not None:
                print(f"  member {member + 1} goes on from member {turn.source + 1}  {' '.join(typed(turn.values))}")


def described(turn: Turn) -> str:
    """Its score and values."""
    return "  ".join([f"{turn.score:.1f}" if turn.score is not None else turn.state, *typed(turn.values)])


def close(sweep: Sweep, population: Population) -> int:
    """Say and write what came of it."""
    best = population.ranked[0]
    failed = [str(i) for i, turn in enumerate(population.turns, 1) if turn.state == "failed"]
    if failed:
        print(f"warning: failed in the last round: member {', '.join(failed)}", file=sys.stderr)
    print(f"how the best came about (all: {population.folder / 'population.csv'}):")
    path = population.lineage(best)
    for member, turn in path:
        print(f"  {turn.start:>10,} to {turn.env_steps:>10,} env steps  member {member + 1}  {described(turn)}")
    with whole(population.folder / "schedule.csv") as draft, draft.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["from_env_steps", *population.space])
        writer.writerows([turn.start, *turn.values.values()] for _, turn in path)
    write_best(population.folder / "best_overrides.yaml", typed(population.turns[best].values))
    print(f"next: drl-eval run={shlex.quote(str(sweep.jobs[best].run))} checkpoint=last episodes=100")
    print(f"      its last values are in {population.folder / 'best_overrides.yaml'}, all of them in schedule.csv")
    return DONE


def write_turns(population: Population) -> None:
    """population.csv: a row for each member and round; members are numbered as their jobs are."""
    with whole(population.folder / "population.csv") as draft, draft.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "member", "source", "start", "env_steps", "state", "score", *population.space])
        for number, turns in enumerate(population.rounds, 1):
            for member, turn in enumerate(turns, 1):
                source = None if turn.source is None else turn.source + 1
                known = (source, turn.start, turn.env_steps, turn.state, turn.score)
                writer.writerow([number, member, *known, *turn.values.values()])
