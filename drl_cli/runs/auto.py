"""algo=auto: choose the algorithm for an environment by recorded results, else by its spaces; list those that fit."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import yaml

from drl_cli.algos.lookup import ACTIONS, NotAlgorithm, is_for_data, is_on_policy, load_algorithm
from drl_cli.errors import UsageError
from drl_cli.networks.inputs import as_image
from drl_cli.runs.text_table import number, table
from drl_cli.settings.algorithm import algorithm_names, algorithm_of
from drl_cli.settings.check import check_option
from drl_cli.settings.command_line import CommandLine
from drl_cli.settings.conf import conf_dir, defaults, read_yaml
from drl_cli.settings.env_names import trial_of, typed_env, typed_spec, typed_values
from drl_cli.settings.first_try import SHORT
from drl_cli.types import leaves
from drl_cli.utils.hydra_grammar import is_sweep, parts, unquoted
from drl_cli.utils.outside import ModuleRaised, NotFound
from drl_cli.utils.shown import score_text

UNTUNED = {"box": "sac", "discrete": "ppo", "multidiscrete": "ppo"}
FOR_FEW_STEPS = {"discrete": "dqn"}
FEW_STEPS = SHORT
WITH_MEMORY, MEMORIES = "ppo", {"lstm", "gru"}
"""The algorithms for vectors without a result: by the kind of actions, in a run of at most FEW_STEPS steps, and for a
network with a memory. On choices, DQN learns earlier than PPO, and PPO is better and steadier after more steps.
"""
FOR_IMAGES = "mrq"
"""The algorithm for images without a result: its one set of values learns discrete and continuous actions."""
OFFLINE = {"box": "iql", "discrete": "cql_discrete"}
"""The algorithms that learn from a dataset, by the kind of actions."""
AUTO = re.compile(r"(?<![\w.-])auto(?![\w.-])")
CHANGES = re.compile(r"[+~]*(env\.(id|kwargs|wrappers|action_repeat|frame_stack)|tuned)\b")
"""Keys that make another task of an environment, or change the tuned values: its recorded results do not count."""
CHOSE = "algo=auto chose "
ENOUGH = 3
"""The number of seeds from which a result counts as proven."""
Result = dict[str, Any]  # see `results`


def with_auto(command: CommandLine) -> tuple[CommandLine, str | None]:
    """Replace `algo=auto` by the chosen algorithm, and return a line that says why. Without `auto`, change nothing.

    If a sweep's list already contains the chosen algorithm, it stays there once. Raise UsageError if the command line
    names several environments.
    """
    typed = typed_values(command.overrides).get("algo", "")
    if not AUTO.search(typed) or (is_sweep(typed) and not command.is_sweep):  # the check of the values reports a list
        return command, None
    words = typed_values(command.overrides)
    env = unquoted(words.get("env", defaults()["env"]))
    if is_sweep(env) or command.config_file is not None:
        raise UsageError("algo=auto chooses for one environment of the command line; say env=NAME without a list")
    overrides = tuple(arg for arg in command.overrides if not arg.startswith("algo="))
    if words.get("mode") == "offline":
        name, reason = choose_offline(env, overrides)
    else:
        name, reason = choose(env, _number(words.get("total_env_steps")), overrides)
    algo = ",".join(dict.fromkeys(AUTO.sub(name, part) for part in parts(typed)))
    changed = [f"algo={algo}" if arg.startswith("algo=") else arg for arg in command.overrides]
    return dataclasses.replace(command, overrides=changed), f"{CHOSE}{name}: {reason}"


@contextmanager
def naming_choice(line: str | None) -> Iterator[None]:
    """Add the line of `with_auto` to the first error line about the chosen algorithm, which the user did not type."""
    try:
        yield
    except UsageError as error:
        name = line.removeprefix(CHOSE).partition(":")[0] if line is not None else ""
        about = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
        place = next((i for i, problem in enumerate(error.problems) if about.search(problem)), None)
        if line is None or place is None:
            raise
        problems = [*error.problems]
        problems[place] += f"   {line}"
        raise UsageError(problems, error.exit_code) from error.__cause__


def choose(env: str, budget: float | None, overrides: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the algorithm for an environment and a number of environment steps, and the reason.

    Of the algorithms that reached a threshold with all seeds in time, those count that needed at most half more steps
    than the best one, and the one with the shortest run is chosen. Without a threshold, the largest return decides.
    Results of fewer than `ENOUGH` seeds decide only if there are no others; the reason names the best one of them if it
    would have been chosen with more seeds.
    """
    changes = [arg.lstrip("+~") for arg in overrides if CHANGES.match(arg)]
    recorded = [result for result in results() if result["env"] == env] if not changes else []
    found = [result for result in recorded if budget is None or result["steps"] <= budget]
    proven = [result for result in found if result["seeds"] >= ENOUGH] or found
    if passed := [result for result in proven if result["threshold"] is not None]:
        best, num = _quickest(passed), _quickest(passed)["seeds"]
        reason = f"reached {best['threshold']:g} in {num} of {num} recorded runs, {best['steps']:,} steps"
        other = _quickest([result for result in found if result["threshold"] is not None])
        if other is not best:
            reason += f"; {other['algo']} needed {other['steps']:,} steps and {other['seconds']:g} s instead of "
            reason += f"{best['seconds']:g} s, but with {_seeds(other)} only"
        return best["algo"], reason
    if found:
        best = max(proven, key=lambda one: (one["return"], one["algo"]))
        reason = f"largest recorded return here, {best['return']:g} after {best['steps']:,} steps ({_seeds(best)})"
        other = max(found, key=lambda one: one["return"])
        if other["return"] > best["return"]:
            reason += f"; {other['algo']} had {other['return']:g}, but with {_seeds(other)} only"
        return best["algo"], reason
    name = f"{env} with {' '.join(changes)}" if changes else env
    reason = f"no recorded result for {name}" + (f" within {budget:,.0f} steps" if recorded else "")
    words = (*overrides, *([] if any(arg.startswith("env=") for arg in overrides) else [f"env={env}"]))
    name, why = choose_untuned(budget, words)
    return name, "; ".join(filter(None, [reason, why]))


def choose_untuned(budget: float | None, overrides: tuple[str, ...]) -> tuple[str, str]:
    """Return the algorithm for an environment without a recorded result, and the reason.

    The kinds of actions and observations choose it, and whether the network has a memory. For vectors and choices, the
    number of steps does, which `stop.wall_s` may limit.
    """
    if (spec := typed_spec(overrides)) is None:  # the environment can't be made, and the run will say why
        return UNTUNED["box"], ""
    kind, typed = spec.action.kind, typed_values(overrides)
    for_all = f"needs no tuned values for {ACTIONS[kind]} actions"
    if {unquoted(typed.get(key, "")) for key in ("network", "network.memory")} & MEMORIES:
        return WITH_MEMORY, f"{WITH_MEMORY} {for_all} and a network with a memory"
    has_images = any(as_image(column) is not None for column in leaves(spec.obs).values())
    if has_images and kind in load_algorithm(FOR_IMAGES).ACTIONS:
        return FOR_IMAGES, f"{FOR_IMAGES} {for_all} and images"
    seen = "images" if has_images else "vectors"
    if kind not in FOR_FEW_STEPS:
        return UNTUNED[kind], f"{UNTUNED[kind]} {for_all} and {seen}"
    steps, measured = _steps_in_time(budget or read_yaml(conf_dir() / "train.yaml")["total_env_steps"], overrides)
    few = steps <= FEW_STEPS
    name = (FOR_FEW_STEPS if few else UNTUNED)[kind]
    what = f"{name} {for_all}, {seen} and {'at most' if few else 'more than'} {FEW_STEPS:,} steps"
    return name, "; ".join(filter(None, [measured, what]))


def _steps_in_time(budget: float, overrides: tuple[str, ...]) -> tuple[float, str]:
    """Return how many steps a run takes until `stop.wall_s`, at most its budget, and what was measured for this."""
    wall_s = _number(typed_values(overrides).get("stop.wall_s"))
    if wall_s is None or (env := typed_env(overrides)) is None or (trial := trial_of(*env)) is None:
        return budget, ""
    return min(budget, trial.steps_per_s * wall_s), f"one environment makes {trial.steps_per_s:,.0f} steps/s"


def choose_offline(env: str, overrides: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the algorithm that learns from a dataset of an environment, and the reason."""
    spec = typed_spec(overrides if any(arg.startswith("env=") for arg in overrides) else (*overrides, f"env={env}"))
    kind = "box" if spec is None else spec.action.kind
    if kind not in OFFLINE:
        raise UsageError(f"algo=auto has no algorithm for data with {ACTIONS[kind]} actions; say algo=NAME")
    return OFFLINE[kind], f"the default for data with {ACTIONS[kind]} actions"


def _quickest(passed: Sequence[Result]) -> Result:
    """Return the result with the shortest run, of those with at most half more steps than the fewest."""
    most = 1.5 * min(result["steps"] for result in passed)
    return min((one for one in passed if one["steps"] <= most), key=lambda one: (one["seconds"], one["algo"]))


def _seeds(result: Result) -> str:
    return f"{result['seeds']} seed{'s' if result['seeds'] > 1 else ''}"


def results() -> list[Result]:
    """Return the recorded results that `choose` compares, one for each algorithm and environment.

    A result has env, algo, threshold (None: the return decides), seeds, and the medians steps, return and seconds.
    scripts/bench/learn.py writes them to conf/auto.json.
    """
    found: list[Result] = json.loads((conf_dir() / "auto.json").read_text())
    return found


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(yaml.safe_load(text))
    except (TypeError, ValueError, yaml.YAMLError):  # the check of the key reports it
        return None


MOST_LINES = 20
"""The largest number of lines for one environment."""


def fitting(env: str, mode: str) -> list[str]:
    """Return lines about the algorithms that can learn an environment: the choice of algo=auto, then by their results.

    Raise UsageError if there is no such environment.
    """
    if problems := check_option("env", env):
        raise UsageError(problems)
    spec = typed_spec((f"env={env}",))
    if spec is None:
        raise UsageError(f"env={env}: its spaces can't be read; drl-train env={env} dry_run=true says why")
    kind, is_offline = spec.action.kind, mode == "offline"
    names = [name for name in algorithm_names() if _learns(name, kind, mode)]
    best, reason = choose_offline(env) if is_offline else choose(env, None)
    found = [] if is_offline else [each for each in results() if each["env"] == env and each["algo"] in names]
    found.sort(key=lambda each: (each["algo"] != best, *_rank(each)))
    rows = [_row(each) for each in found[: MOST_LINES - 6]]
    others = [name for name in names if name not in {each["algo"] for each in found}]
    others.sort(key=lambda name: (name != best, is_offline and not is_for_data(algorithm_of(name))))
    lines = [f"{env}: {spec.action.text} actions, mode={mode}; algo=auto takes {best}: {reason}"]
    if rows:
        head = ("algo", "reached", "return", "env steps", "seconds", "seeds")
        lines += table(head, rows, sys.stdout, ("algo",)).splitlines()
    lines += [f"{len(found) - len(rows)} more with results"] if len(found) > len(rows) else []
    lines += [f"without recorded results: {', '.join(others)}"] if others else []
    return lines if names else [f"no algorithm has {ACTIONS[kind]} actions in mode={mode}"]


def _learns(name: str, kind: str, mode: str) -> bool:
    """Return whether an algorithm has this kind of actions and learns in this mode."""
    with suppress(NotFound, NotAlgorithm, ModuleRaised, UsageError):
        module = load_algorithm(algorithm_of(name))
        is_refused = mode == "offline" and is_on_policy(module.TABLES)
        return kind in module.ACTIONS and mode in module.MODES and not is_refused
    return False  # a broken installed algorithm


def _rank(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that sorts results: those of enough seeds first, then by steps to the threshold, or by return."""
    is_reached = result["threshold"] is not None
    return result["seeds"] < ENOUGH, not is_reached, result["steps"] if is_reached else -result["return"]


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    threshold = "-" if result["threshold"] is None else f"{result['threshold']:g}"
    numbers = (score_text(result["return"]), number(result["steps"]), number(result["seconds"]))
    return result["algo"], threshold, *numbers, str(result["seeds"])
