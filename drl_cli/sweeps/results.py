"""The end of a search: the trials by rank, the verdict on the best values, the files, and the next commands."""

import math
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drl_cli.errors import DONE, SWEEP
from drl_cli.runs.end_text import next_lines, relative_path
from drl_cli.runs.run import Run
from drl_cli.runs.table import steps as position
from drl_cli.settings.conf import groups
from drl_cli.settings.space import parse, typed
from drl_cli.sweeps.ranking import by_return, print_values
from drl_cli.sweeps.study import Study, Trial, Trials
from drl_cli.utils.files import write_csv
from drl_cli.utils.outside import source_file
from drl_cli.utils.shown import print, score_text


def finish_search(trials: Trials) -> int:
    """Print and write the results. Return the exit code: 0 if all trials have ended and at least one is done."""
    study, folder, best = trials.study, trials.study.folder, trials.study.best
    counts = {state: sum(trial.state == state for trial in study.trials) for state in ("done", "pruned", "failed")}
    print(f"{len(study.trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    running = [trial for trial in study.trials if trial.state == "running"]
    print_trials(trials)
    if best is None or running:
        problem = f"{len(running)} trials have not ended" if running else "no trial was done"
        more = "" if running else f" hpo.trials={2 * len(study.trials)}"  # trials that have failed do not run again
        print(f"error: {problem}\nnext: drl-train -m resume={shlex.quote(str(folder))}{more}", file=sys.stderr)
        return SWEEP
    print(f"best: {' '.join(typed(best.values))}   objective {score_text(best.objective)}")
    scores = {name: trials.fresh_scores(trial) for name, trial in (("best", best), ("defaults", None))}
    for name, values in scores.items():
        if count := study.hpo.fresh_seeds:
            print(f"{name} on {count} fresh seeds: {_mean_text(values, count)}")
    is_better, text = verdict(scores["best"], scores["defaults"], study.hpo.fresh_seeds)
    print(f"verdict: {text}")
    for key, share in study.importances().items():
        print(f"importance of {key}: {share:.2f}")
    chosen = write_best(folder, typed(best.values))
    rows = [
        [i, *(trial.values[key] for key in study.space), trial.state, trial.objective, " ".join(map(str, trial.jobs))]
        for i, trial in enumerate(study.trials)
    ]
    write_csv(folder / "trials.csv", ["trial", *study.space, "state", "objective", "jobs"], rows)
    draw_search(study, folder / "search.png")
    print("\n".join(next_lines(_commands(trials, best if is_better else None, chosen))))
    return DONE


def verdict(best: Sequence[float], defaults: Sequence[float], count: int) -> tuple[bool, str]:
    """Return whether to use the best trial's values, and a sentence.

    `best` and `defaults` are the scores of the finished runs on `count` fresh seeds. If one side finished fewer runs,
    the other side wins, otherwise the higher mean.
    """
    if len(best) != len(defaults):
        is_better, lost = len(best) > len(defaults), count - min(len(best), len(defaults))
        loser, advice = (
            ("the defaults", "use the best values") if is_better else ("the best values", "keep the defaults")
        )
        return is_better, f"{loser} did not finish on {lost} of {count} fresh seeds: {advice}"
    if not best:
        return True, "unknown: the best values were not compared with the defaults (hpo.fresh_seeds=3 compares them)"
    gain = statistics.mean(best) - statistics.mean(defaults)
    if gain <= 0:
        return False, f"the defaults are {'better' if gain else 'as good'} on fresh seeds: keep them"
    spread = (
        sum(statistics.variance(values) / len(values) for values in (best, defaults)) if len(best) > 1 else math.inf
    )
    more = f"-m resume=latest hpo.fresh_seeds={3 * count} tells more"
    doubt = f", but within the noise of {count} seeds; {more}" if gain <= 2 * math.sqrt(spread) else ""
    return True, f"the best values are better than the defaults by {score_text(gain)} on fresh seeds{doubt}"


def _commands(trials: Trials, winner: Trial | None, chosen: Sequence[str]) -> list[str]:
    """Return the commands that train with the values of `winner` (None: the defaults) and evaluate its best seed.

    `chosen` are the values that the file of the best values does not contain.
    """
    sweep, fixed = trials.sweep, trials.study.fixed
    commands = [shlex.join(["drl-train", *sweep.flags, *fixed, *(typed(winner.values) if winner else ())])]
    own = [sweep.jobs[job - 1] for job in winner.jobs] if winner else []
    run = by_return([*trials.fresh_jobs(winner), *own])[0].run
    if run is not None and (run / "checkpoints" / "best").exists():
        commands.append(f"drl-eval run={relative_path(run)} episodes=100")
    if winner and not any(flag in ("--config-dir", "-cd") for flag in sweep.flags):
        words = shlex.join([*sweep.flags, *fixed, *chosen])
        commands.append(f"drl-train --config-dir {relative_path(sweep.folder)} {words} experiment=best")
    return commands


def print_trials(trials: Trials) -> None:
    """Print a table of the trials, the best first: objective, values, seeds, steps, state, trial and jobs."""
    rows = []
    for i, trial in enumerate(trials.study.trials):
        jobs = [trials.sweep.jobs[job - 1] for job in trial.jobs]
        runs = [Run(job.run) for job in jobs if job.run is not None]
        steps = position(sum(run.position for run in runs) or None, runs[0].unit if runs else "env_steps")
        seeds = ",".join(override[5:] for job in jobs for override in job.overrides if override.startswith("seed="))
        more = {"seed": seeds, "steps": steps, "status": trial.state, "trial": i}
        rows.append((trial.objective, trial.values, {**more, "job": ",".join(map(str, trial.jobs))}))
    print_values("objective", rows, trials.study.folder / "trials.csv")


def _mean_text(values: Sequence[float], count: int) -> str:
    if not values:
        return "none was done"
    spread = f" +- {score_text(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{score_text(statistics.mean(values))}{spread}" + ("" if len(values) == count else f" ({len(values)} done)")


def write_best(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Write the overrides to experiment/best.yaml in `folder`, for `--config-dir FOLDER experiment=best`.

    Return the overrides that choose an option of a group. In the file, they are a comment.
    """
    import yaml

    tree: dict[str, Any] = {}
    chosen: list[str] = []
    for key, value in parse(overrides):
        *parents, name = key.split(".")
        if not parents and name in groups():
            chosen.append(f"{name}={value}")
            continue
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    note = f"# and on the command line: {' '.join(chosen)}\n" if chosen else ""
    path = folder / "experiment" / "best.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# @package _global_\n{note}{yaml.safe_dump(tree, sort_keys=False)}")
    return chosen


def draw_search(study: Study, path: Path) -> None:
    """If matplotlib is installed, draw the objective of each trial and the importance of each key."""
    if source_file("matplotlib") is None:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(search_figure(study)).print_figure(path, dpi=120)


def search_figure(study: Study) -> Any:  # Any: matplotlib is imported late
    """Return the figure: the objective of each trial and, if known, the importance of each key."""
    from matplotlib.figure import Figure

    importances = study.importances()
    figure = Figure(figsize=(9 if importances else 5, 3.5), layout="constrained")
    history, *others = figure.subplots(1, 2 if importances else 1, squeeze=False)[0]
    done = [(i, t.objective) for i, t in enumerate(study.trials) if t.state == "done" and t.objective is not None]
    numbers, values = [i for i, _ in done], [value for _, value in done]
    history.plot(numbers, values, "o", ms=4, label="objective")
    history.step(numbers, [max(values[: i + 1]) for i in range(len(values))], where="post", label="best so far")
    history.set(xlabel="trial", ylabel="return")
    history.legend()
    for shares in others:
        shares.barh(list(importances), list(importances.values()))
        shares.set(xlabel="importance", xlim=(0, 1))
    return figure
