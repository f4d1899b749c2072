"""drl-compare: compare the returns of runs, grouped by the keys that differ in their configs."""

import csv
import math
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from drl_cli.cli.command import OUTPUT_DIR_HELP, TRUST_HELP, option, run_words
from drl_cli.cli.eval import play
from drl_cli.errors import DONE, MISSING, RESOURCES, UsageError
from drl_cli.run_folder.find import find_runs, find_saved_step, read_config
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.comparison import Comparison, compare, over_environments, paired, units_of
from drl_cli.runs.groups import SHORT, Group, grouped, key_hint, pooled_keys, unshown_keys
from drl_cli.runs.text_table import NONE, between, number, steps, table
from drl_cli.settings.options import parse, usage
from drl_cli.utils.ranges import Count
from drl_cli.utils.run_clock import UNIT_TEXTS
from drl_cli.utils.seeding import integers
from drl_cli.utils.shown import print, score_text

NOT_DRAWN = "needs matplotlib, which is not installed:  pip install 'drl-cli[plot]'"
FORMATS = (".png", ".pdf", ".svg")
MOST_NAMED = 12  # a note names at most 12 keys
FEW_SEEDS = 5  # a note warns about the intervals of fewer seeds
EXAMPLES = (
    "drl-compare runs=[outputs/CartPole-v1/dqn-*,outputs/CartPole-v1/ppo-*] threshold=475",
    "drl-compare outputs/Pendulum-v1 by=[algo.lr] csv=null",
    "drl-compare outputs/HalfCheetah-v5 'lines=[SAC (published):6200]'",
)


@dataclass(frozen=True)
class Options:
    """Options of drl-compare."""

    WRITES: ClassVar = "Say png=FILE for the figure, and csv=FILE for the curves"

    runs: tuple[str, ...] = option((), "[GLOB,...]: runs, folders of runs, globs, starts of run ids, names of runs")
    threshold: float | None = option(None, "time to this return; null: the runs' stop.return")
    by: tuple[str, ...] = option((), "[KEY,...]: group by these keys alone, and by env")
    paired: bool = option(False, "play the best policies of two runs, runs=[A,B], on the same episode seeds")
    episodes: Count = option(100, "with paired=true: the number of episodes")
    trust: bool = option(False, TRUST_HELP)
    smooth: Count = option(1, "each point of figure and csv is the mean of this many evaluations")
    lines: tuple[str, ...] = option((), "[NAME:RETURN,...]: dashed lines in the figure, such as published results")
    png: str | None = option("compare.png", "the figure (.png, .pdf, .svg); null: none")
    csv: str | None = option("compare.csv", "the curves; null: none")
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def main() -> None:
    """Run drl-compare."""
    about = "compare runs: table, figure and csv of returns over env steps and seconds"
    run_words(answer, lambda words: usage("drl-compare", Options, about, EXAMPLES), needs_words=True)


def answer(words: Sequence[str]) -> int:
    """Print the table, and write the curves and the figure.

    If matplotlib is missing, raise UsageError only if the user gave `png=`.
    """
    options = parse(words, Options, positional="runs")
    if options.png is not None and Path(options.png).suffix not in FORMATS:
        raise UsageError(f"png: must end in {', '.join(FORMATS)}, got {options.png}")
    lines = dict(map(drawn_line, options.lines))
    if not options.runs:
        raise UsageError(f"runs: names no run; say drl-compare {shlex.quote(options.output_dir)}")
    if options.paired:
        print("\n".join(paired_lines(options)))
        return DONE
    if useless := [key for key in ("episodes", "trust") if any(word.startswith(f"{key}=") for word in words)]:
        raise UsageError(f"{useless[0]}: only paired=true plays episodes; say paired=true, or leave {useless[0]} out")
    groups = chosen_groups(options)
    comparisons = [compare(group, options.threshold, options.smooth) for group in groups]
    print("\n".join([comparison_table(comparisons), *environments_table(comparisons), *notes(comparisons)]))
    try:
        for file in filter(None, (options.csv, options.png)):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        if options.csv is not None:
            write_csv(Path(options.csv), comparisons)
            print(f"curves: {options.csv}")
        if options.png is not None:
            from drl_cli.runs.figure import make_figure

            make_figure(comparisons, lines).savefig(Path(options.png), dpi=150)
            print(f"figure: {options.png}")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        if any(word.startswith("png=") for word in words):
            raise UsageError(f"png={options.png} {NOT_DRAWN}", MISSING) from error
        print(f"figure: {options.png} was not drawn, it {NOT_DRAWN}")
    except OSError as error:
        raise UsageError(f"can't be written: {error}", RESOURCES) from error
    return DONE


def paired_lines(options: Options) -> list[str]:
    """Return lines that compare the greedy policies of two runs in the same episodes. Raise UsageError."""
    if len(options.runs) != 2:
        raise UsageError(f"paired=true compares two runs, runs=[A,B], got {len(options.runs)}")
    steps = [find_saved_step(run, "best", options.output_dir) for run in options.runs]
    configs = [read_config(folder, options.trust) for folder, _ in steps]
    tasks = [config.env.for_evaluation(config.manage.env_kwargs) for config in configs]
    if len({(task.id, str(dict(task.kwargs)), task.action_repeat) for task in tasks}) > 1:
        raise UsageError("paired=true: the two runs have different environments")
    seeds = integers(0, "confirm", options.episodes)
    (first, one), (second, other) = (
        (play(config, step, seeds, False)[0].returns, f"{folder.name}  {step.name}")
        for config, (folder, step) in zip(configs, steps, strict=True)
    )
    (difference, *ends), (better, *bounds) = paired(first, second)
    return [
        f"A  {one}  mean {score_text(first.mean())}",
        f"B  {other}  mean {score_text(second.mean())}",
        f"A - B: {between(difference, ends[0], ends[1])} over {len(seeds)} episodes with the same seeds",
        f"A is better in a share of {between(better, bounds[0], bounds[1], '.2f')} of them",
    ]


def drawn_line(item: str) -> tuple[str, float]:
    """Return name and return of an item of `lines`. Raise UsageError if the return is no finite number."""
    name, _, text = item.rpartition(":")
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return name, value
    raise UsageError(f"lines: must be [NAME:RETURN,...], as in lines=[SAC:6200], got {text!r} as a return")


def chosen_groups(options: Options) -> list[Group]:
    """Group the runs, and leave out runs without an evaluation.

    Raise UsageError if no run is left, or if `by` puts runs with different configs into one group.
    """
    runs = [Run(path) for path in find_runs(options.runs, options.output_dir)]
    for run in runs:
        if not len(run.curve):
            print(f"warning: {run.id} ({run.status}) has no evaluation yet and is left out", file=sys.stderr)
    runs = [run for run in runs if len(run.curve)]
    if not runs:
        raise UsageError("none of these runs has an evaluation yet")
    known = {key for run in runs for key in run.config}
    if unknown := [key for key in options.by if SHORT.get(key, key) not in known]:
        short = ("env", "algo")
        raise UsageError([f"by: no run has a key '{key}'.{key_hint(key, known, short)}" for key in unknown])
    groups = grouped(runs, options.by)
    if mixed := pooled_keys(groups):
        more = ",".join((*options.by, *mixed))
        raise UsageError(
            f"by=[{','.join(options.by)}]: runs of one line differ in more than their seed: {_named(mixed)}; "
            f"say by=[{more}], or leave by out"
        )
    return groups


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """Return a table with a line per group. Hide `env` if there is only one, and goals if no run has a goal."""
    head_unit = units_of(comparisons)[0]
    rows = [
        {
            "env": one.group.env,
            "runs of": one.group.label,
            "seeds": str(len(one.runs)),
            UNIT_TEXTS[head_unit]: steps(one.position, one.unit, head_unit),
            "seconds": number(one.wall_s),
            "final IQM [95%]": between(*one.final),
            "score": score_text(one.score),
            "goal": number(one.threshold, "g"),
            "reached": NONE if one.threshold is None else f"{one.num_reached}/{len(one.runs)}",
            "steps to": steps(one.steps_to, one.unit, head_unit),
            "seconds to": number(one.seconds_to),
        }
        for one in comparisons
    ]
    hidden = set[str]() if len({one.group.env for one in comparisons}) > 1 else {"env"}
    if all(one.threshold is None for one in comparisons):
        hidden |= {"goal", "reached", "steps to", "seconds to"}
    if all(one.score is None for one in comparisons):
        hidden.add("score")
    head = [name for name in rows[0] if name not in hidden]
    return table(head, [[row[name] for name in head] for row in rows], sys.stdout, left=("env", "runs of"))


def environments_table(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the lines of a table of scores over all environments, or [] if `over_environments` returns no score."""
    if not (found := over_environments(comparisons)):
        return []
    runs = Counter[str]()
    for one in comparisons:
        runs[one.group.label] += len(one.runs)
    rows = [[label, str(runs[label]), between(*score, form=".2f")] for label, score in found.items()]
    head = ("over all environments", "runs", "scaled final IQM [95%]")
    return ["", table(head, rows, sys.stdout, left=head[:1]), ""]


def notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Return lines that warn about the numbers in the table."""
    groups = [one.group for one in comparisons]
    lines = []
    if keys := unshown_keys(groups):
        lines.append(f"the algorithms' runs differ in these, too: {_named(keys)}")
    if (least := min(len(one.runs) for one in comparisons)) < FEW_SEEDS:
        lines.append(f"{least} seed{'s' * (least > 1)} in the smallest group: intervals of few seeds are too narrow")
    for one in comparisons:
        lines += [f"{one.group.label}: {line}" for line in one.remarks()]
    return lines


def write_csv(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Write a line for each group, each axis (env steps or updates, and seconds) and each point of the curve."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("env", "group", "axis", "x", "iqm", "low", "high", "seeds", "held"))
        for one in comparisons:
            group, seeds = (one.group.env, one.group.label), len(one.runs)
            for name, curve in one.curves.items():
                axis = one.unit if name == "env_steps" else name
                for x, *values in zip(curve.x, curve.iqm, curve.low, curve.high, strict=True):
                    numbers = ["" if math.isnan(value) else float(value) for value in values]
                    held = str(bool(x > curve.held_from)).lower()
                    writer.writerow((*group, axis, float(x), *numbers, seeds, held))


def _named(keys: Sequence[str]) -> str:
    """Return the first MOST_NAMED keys as text, followed by the number of the other keys."""
    more = len(keys) - MOST_NAMED
    return ", ".join(keys[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


if __name__ == "__main__":
    main()
